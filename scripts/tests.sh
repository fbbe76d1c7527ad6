#!/usr/bin/env bash
# Usage: tests.sh PYTHON [ARGS for pytest...]. Runs every test in lots: each folder is one, and a long folder several.
# There are two lots at a time for each core, since those that start programs wait a lot; those that wait most and those
# that take longest come first, so that none is left over at the end. A line says when a lot is over; at the end comes
# what pytest wrote, of the lots that failed last. With ARGS, one run with these.
set -uo pipefail
export PYTHON=$1
shift
unset PYTHONDONTWRITEBYTECODE # else every process that a test starts compiles the tree anew
if [ $# -gt 0 ]; then
  exec "$PYTHON" -m pytest -m "not chaos" --durations=10 "$@"
fi
at_once=$((2 * $(getconf _NPROCESSORS_ONLN)))
lots=(
  tests/redis_trouble
  tests/chaos
  "tests/e2e/test_f*.py"
  tests/conformance/test_conformance.py
  "tests/conformance/test_[!c]*.py tests/conformance/test_client_mode.py" # of the same runs of the suite
  "tests/e2e/test_[g-q]*.py"
  "tests/e2e/test_c*.py"
  "tests/e2e/test_r*.py"
  "tests/e2e/test_[s-z]*.py"
  "tests/e2e/test_[abde]*.py"
  tests/deploy
  tests/faults
  tests/matrix
  "tests/actors/test_[a-m]*.py tests/actors/modern"
  "tests/actors/test_[!a-m]*.py"
  "tests/gateway/[a-c]*"
  "tests/gateway/[!_a-c]*"
  tests/interaction
  tests/cluster
  tests/fuzz
)
for folder in tests/*/; do
  folder=${folder%/}
  [ -n "$(find "$folder" -name 'test_*.py' -print -quit)" ] || continue
  [[ " ${lots[*]} " == *" $folder"[\ /]* ]] || lots+=("$folder")
done

files() { find "$@" -name node_modules -prune -o -name 'test_*.py' -print; }
# shellcheck disable=SC2086
covered=$(for lot in "${lots[@]}"; do files $lot; done | sort)
if [ "$covered" != "$(files tests | sort)" ]; then
  echo "tests.sh: not every test is in exactly one lot" >&2
  exit 1
fi

LOGS=$(mktemp -d)
export LOGS
trap 'cat "$LOGS"/*.ok "$LOGS"/*.cut "$LOGS"/*.failed 2>/dev/null; rm -rf "$LOGS"' EXIT

lot() { # PATHS as a pattern: runs them; the name of the log says how it ended
  local log
  log=$LOGS/$(printf %s "$1" | tr -c 'a-z0-9\n' _)
  # shellcheck disable=SC2086
  if "$PYTHON" -m pytest -m "not chaos" --durations=5 -p no:cacheprovider $1 >"$log.cut" 2>&1; then
    mv "$log.cut" "$log.ok"
    printf '%s: %s\n' "$1" "$(tail -n 1 "$log.ok")"
  else
    mv "$log.cut" "$log.failed"
    printf '%s: FAILED: %s\n' "$1" "$(tail -n 1 "$log.failed")"
    return 1
  fi
}
export -f lot
printf '%s\0' "${lots[@]}" | xargs -0 -n 1 -P "$at_once" bash -c 'lot "$1"' lot
