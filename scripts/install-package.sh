#!/usr/bin/env bash
# Usage: install-package.sh "WHAT" APT_NAMES BREW_NAMES. Installs packages by the system's package manager,
# or says in one line what to install.
set -euo pipefail
what=$1 apt=$2 brew=$3

as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo -n "$@"; fi; }
may_be_root() { [ "$(id -u)" = 0 ] || sudo -n true 2>/dev/null; }

# The lists of names are split on purpose.
# shellcheck disable=SC2086
if command -v apt-get >/dev/null && may_be_root; then
  exec 9<"$0"
  flock 9 # apt itself gives up where another one runs
  as_root apt-get update -qq
  as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $apt
elif command -v brew >/dev/null; then
  brew install --quiet $brew
else
  echo "The tests need $what: install it (Debian, Ubuntu: $apt; Homebrew: $brew) and run this again." >&2
  exit 1
fi
