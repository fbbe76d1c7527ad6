#!/usr/bin/env bash
# Usage: tests.sh PYTHON [ARGS for pytest...]. Runs every test, in two lots at once: those that start programs, which
# wait a lot (as many of them as take half of the time), and the rest. With ARGS, one run with these.
set -uo pipefail
python=$1
shift
if [ $# -gt 0 ]; then
  exec "$python" -m pytest -m "not chaos" --durations=10 "$@"
fi
programs=(tests/conformance tests/e2e)
rest=()
for folder in tests/*/; do
  folder=${folder%/}
  compgen -G "$folder/**/test_*.py" >/dev/null || compgen -G "$folder/test_*.py" >/dev/null || continue
  [[ " ${programs[*]} " == *" $folder "* ]] || rest+=("$folder")
done
log=$(mktemp)
trap 'cat "$log"; rm -f "$log"' EXIT
"$python" -m pytest -m "not chaos" --durations=10 -p no:cacheprovider "${rest[@]}" >"$log" 2>&1 &
other=$!
"$python" -m pytest -m "not chaos" --durations=10 -p no:cacheprovider "${programs[@]}"
first=$?
wait "$other"
second=$?
exit $((first > second ? first : second))
