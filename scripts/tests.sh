#!/usr/bin/env bash
# Usage: [STYLE=COMMAND] [TOOLS=COMMAND] tests.sh PYTHON [ARGS for pytest...]. Runs every test in lots: each folder is one,
# and a long folder several; STYLE, which checks the style, is a lot too. Two queues of lots run side by side: those that
# need nothing but a redis-server, and those that begin when TOOLS has set up the rest. In each, those that take longest
# come first, so that none is left over at the end.
# Lots that start programs wait a lot: so there are more at a time than cores. A line says when a lot is over; at the end
# comes what pytest wrote, of the lots that failed last. With ARGS, one run with these.
set -uo pipefail
export PYTHON=$1
TOOLS=${TOOLS:-true}
export STYLE=${STYLE:-true}
shift
unset PYTHONDONTWRITEBYTECODE # else every process that a test starts compiles the tree anew
export NODE_COMPILE_CACHE=$PWD/build/node # the same for programs on node
# Of a folder of authorities a client reads those that it meets, of a file all, each time.
if [ -d "${SSL_CERT_DIR:-}" ]; then unset SSL_CERT_FILE; fi
if [ $# -gt 0 ]; then
  $TOOLS && $STYLE && exec "$PYTHON" -m pytest -m "not chaos" --durations=10 "$@"
  exit 1
fi
cores=$(getconf _NPROCESSORS_ONLN)
at_once=$(((3 * cores + 1) / 2)) # of the first queue
waiting=$((2 * cores))           # of the second, most of whose lots start programs
alone=( # those that need no tools
  tests/faults/test_plans.py
  tests/interaction
  tests/faults/test_plans_within.py
  tests/contracts
  "tests/faults/test_[!p]*.py tests/faults/test_p[!l]*.py"
  tests/redis_trouble
  "tests/actors/test_[a-m]*.py tests/actors/modern"
  "tests/actors/test_[!a-m]*.py"
  tests/workers
  tests/cluster
  tests/model
  tests/oauth
  tests/protocol
  tests/fuzz
  tests/architecture
  tests/runtime
)
lots=(
  tests/deploy
  "tests/gateway/[a-c]*"
  tests/conformance/test_conformance.py
  "tests/e2e/test_[s-z]*.py"
  tests/matrix
  "tests/e2e/test_[abde]*.py"
  "tests/conformance/test_[!c]*.py tests/conformance/test_client_mode.py" # of the same runs of the suite
  "tests/gateway/[!_a-c]*"
  "tests/e2e/test_[cr]*.py"
  "tests/e2e/test_f*.py"
  tests/chaos
  "tests/e2e/test_[g-q]*.py"
)
for folder in tests/*/; do
  folder=${folder%/}
  [ -n "$(find "$folder" -name 'test_*.py' -print -quit)" ] || continue
  [[ " ${alone[*]} ${lots[*]} " == *" $folder"[\ /]* ]] || lots+=("$folder")
done

files() { find "$@" -name node_modules -prune -o -name 'test_*.py' -print; }
# shellcheck disable=SC2086
covered=$(for lot in "${alone[@]}" "${lots[@]}"; do files $lot; done | sort)
if [ "$covered" != "$(files tests | sort)" ]; then
  echo "tests.sh: not every test is in exactly one lot" >&2
  exit 1
fi

LOGS=$(mktemp -d)
export LOGS
trap 'cat "$LOGS"/*.ok "$LOGS"/*.cut "$LOGS"/*.failed 2>/dev/null; rm -rf "$LOGS"' EXIT

run() { # PATHS as a pattern, or "style"
  if [ "$1" = style ]; then
    $STYLE
  else
    # shellcheck disable=SC2086
    "$PYTHON" -m pytest -m "not chaos" --durations=5 -p no:cacheprovider $1
  fi
}

lot() { # runs it; the name of the log says how it ended
  local log
  log=$LOGS/$(printf %s "$1" | tr -c 'a-z0-9\n' _)
  if run "$1" >"$log.cut" 2>&1; then
    mv "$log.cut" "$log.ok"
    printf '%s: %s\n' "$1" "$(tail -n 1 "$log.ok")"
  else
    mv "$log.cut" "$log.failed"
    printf '%s: FAILED: %s\n' "$1" "$(tail -n 1 "$log.failed")"
    return 1
  fi
}
export -f run lot

queue() { # AT_ONCE LOTS...
  printf '%s\0' "${@:2}" | xargs -0 -n 1 -P "$1" bash -c 'lot "$1"' lot
}

set -m # a group of processes of its own, for an end by ^C is told to it
queue "$at_once" style "${alone[@]}" &
beside=$!
set +m
trap 'kill -INT -- "-$beside"; exit 130' INT TERM
if $TOOLS; then
  queue "$waiting" "${lots[@]}"
else
  echo "tests.sh: FAILED: the rest was not run, for what it needs could not be set up" >&2
  false
fi
status=$?
wait "$beside" && exit $status
