#!/usr/bin/env bash
# Makes sure that an haproxy is on PATH (Debian keeps it in /usr/sbin). The tests start their own on free ports.
set -euo pipefail
PATH=$PATH:/usr/sbin
command -v haproxy >/dev/null || "$(dirname "$0")/install-package.sh" haproxy haproxy haproxy
