#!/usr/bin/env bash
# Makes sure that npm is on PATH. It only installs packages; the tests run them on the node that comes with them.
set -euo pipefail
command -v npm >/dev/null || "$(dirname "$0")/install-package.sh" npm "nodejs npm" node
