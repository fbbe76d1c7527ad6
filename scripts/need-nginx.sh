#!/usr/bin/env bash
# Makes sure that an nginx is on PATH (Debian keeps it in /usr/sbin). The chaos suite starts its own on a free port; a
# running one is not used.
set -euo pipefail
PATH=$PATH:/usr/sbin
command -v nginx >/dev/null || "$(dirname "$0")/install-package.sh" nginx nginx nginx
