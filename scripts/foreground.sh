#!/usr/bin/env bash
# Usage: foreground.sh COMMAND... On a terminal the command gets a process group of its own in the foreground, so that
# Ctrl-C reaches it alone: make would take the same signal for a failure, however well the command ended.
set -u
if [ -t 0 ]; then
  set -m
  "$@"
else
  exec "$@"
fi
