#!/usr/bin/env bash
# Usage: tests.sh PYTHON [ARGS for pytest...]. Runs every test: each folder is a lot, long ones first, and there is one
# lot more at a time than there are cores, because those that start programs wait a lot. A line says when a lot is over;
# at the end comes what pytest wrote, of the lots that failed last. With ARGS, one run with these.
set -uo pipefail
export PYTHON=$1
shift
unset PYTHONDONTWRITEBYTECODE # else every process that a test starts compiles the tree anew
if [ $# -gt 0 ]; then
  exec "$PYTHON" -m pytest -m "not chaos" --durations=10 "$@"
fi
at_once=$(($(getconf _NPROCESSORS_ONLN) + 1))
lots=("tests/e2e/test_[a-f]*.py" "tests/e2e/test_[!a-f]*.py" tests/conformance tests/deploy tests/faults tests/matrix tests/chaos tests/actors tests/interaction tests/cluster tests/fuzz)
for folder in tests/*/; do
  folder=${folder%/}
  [ -n "$(find "$folder" -name 'test_*.py' -print -quit)" ] || continue
  [[ " ${lots[*]} " == *" $folder"[\ /]* ]] || lots+=("$folder")
done

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
