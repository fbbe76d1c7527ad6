#!/usr/bin/env bash
# Makes sure that a headless Chromium is there, in which the tests open the pages for connecting accounts.
set -euo pipefail
for name in chromium-headless-shell chromium chromium-browser google-chrome; do
  command -v "$name" >/dev/null && exit 0
done
"$(dirname "$0")/install-package.sh" "Chromium" chromium-headless-shell chromium
