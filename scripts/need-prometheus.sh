#!/usr/bin/env bash
# Makes sure that prometheus and promtool are on PATH. The tests start their own on free ports; the service that the
# package of Debian brings with it is turned off where this installs it.
set -euo pipefail
if ! command -v prometheus >/dev/null || ! command -v promtool >/dev/null; then
  "$(dirname "$0")/install-package.sh" prometheus prometheus prometheus
  as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo -n "$@"; fi; }
  if [ -d /run/systemd/system ]; then as_root systemctl disable --quiet --now prometheus.service; fi
fi
