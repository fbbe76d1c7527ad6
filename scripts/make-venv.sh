#!/usr/bin/env bash
# Usage: make-venv.sh DIR LOCK [PYTHON]. Makes the virtual environment DIR hold the packages of the hashed LOCK.
# An environment that is there already is kept and brought up to the lock. With PYTHON, the pip of that one fills it, for
# most of the time that an empty environment takes goes into a pip of its own.
set -euo pipefail
dir=$1 lock=$2
if [ $# -gt 2 ]; then
  pip=("$3" -m pip --python "$dir/bin/python") kind=--without-pip
else
  pip=("$dir/bin/python" -m pip) kind=--clear
fi

new_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }

# Linux: the interpreter is in the program itself, not in a library beside it. Of two builds of one version such a one takes a
# sixth less CPU, if the other is one as pyenv makes it.
in_one_piece() { "$1" -c 'import ensurepip, sys; sys.exit("libpython" in open("/proc/self/maps").read())' 2>/dev/null; }

find_python() {
  local name fits
  local names=(python3 /usr/bin/python3 python3.14 python3.13 python3.12 python3.11)
  [ -z "${PYTHON:-}" ] || names=("$PYTHON")
  for fits in in_one_piece true; do
    for name in "${names[@]}"; do
      if command -v "$name" >/dev/null && new_enough "$name" && "$fits" "$name"; then
        echo "$name"
        return
      fi
    done
  done
  echo "Stagedoor needs Python 3.11 or newer, as python3 on PATH or by PYTHON=/path/to/python3;" \
    "found: $("${names[0]}" --version 2>/dev/null || echo none)" >&2
  return 1
}

if ! { [ -x "$dir/bin/python" ] && new_enough "$dir/bin/python" && "${pip[@]}" --version >/dev/null 2>&1; }; then
  python=$(find_python)
  echo "making $dir with $("$python" --version)"
  "$python" -m venv --clear $kind "$dir" || {
    echo "$python cannot make virtual environments: install its venv package (Debian, Ubuntu: apt-get install python3-venv)" >&2
    exit 1
  }
fi
echo "installing the $(grep -c '==' "$lock") packages of $lock into $dir"
# The lock is whole, so nothing is resolved: pip would look for the newest of a package that is wanted with an extra, find
# one that is not in the lock, and refuse. Python compiles what is imported when it is: most of what there is never is.
options=(--no-deps --require-hashes --requirement)
by_pip() { # LOCK: what is there already is no news; what is fetched and installed shows that it goes on
  "${pip[@]}" install --disable-pip-version-check --no-input --progress-bar off --no-compile "${options[@]}" "$1" |
    { grep -v -e 'already satisfied' -e '^Ignoring ' -e '^  ' || true; }
}
# uv takes a second where pip takes twenty. It doesn't know what pip is configured to: then pip does it.
runs_uv=${3:-$dir/bin/python}
if ! "$runs_uv" -m uv --version >/dev/null 2>&1 && grep -q '^uv==' "$lock"; then
  by_pip <(awk '/^[^ ]/ { ours = /^uv==/ } ours' "$lock") || true
fi
"$runs_uv" -m uv --quiet pip install --python "$dir/bin/python" "${options[@]}" "$lock" || by_pip "$lock"
