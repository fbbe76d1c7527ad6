#!/usr/bin/env bash
# Makes sure that bubblewrap is there, by which tests start servers in a sandbox. Linux alone has it.
set -euo pipefail
[ "$(uname)" = Linux ] || exit 0
command -v bwrap >/dev/null || "$(dirname "$0")/install-package.sh" bubblewrap bubblewrap bubblewrap
