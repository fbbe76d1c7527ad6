#!/usr/bin/env bash
# Resolves every lock file of the tree anew: newest versions that the requirements allow, hashes, no addresses.
# Needs uv (on PATH, or UV=/path/to/uv) and npm. Name packages to move only those: scripts/lock.sh trio hypercorn
set -euo pipefail
cd "$(dirname "$0")/.."
uv=${UV:-uv}
command -v "$uv" >/dev/null || { echo "re-locking needs uv: pip install uv" >&2; exit 1; }

upgrade=(--upgrade)
[ $# -eq 0 ] || upgrade=("${@/#/--upgrade-package=}")

compile() { # OUTPUT SOURCES...
  echo "locking $1"
  "$uv" pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-emit-index-url \
    --no-emit-find-links "${upgrade[@]}" --output-file "$@"
}

compile requirements.lock pyproject.toml scripts/build-requirements.in --extra dev
# What goes into the image: of the same versions, and nothing of development.
compile deploy/image/runtime.lock pyproject.toml --extra traces --extra vectors --extra policy --constraint requirements.lock
compile deploy/image/build.lock scripts/build-requirements.in deploy/image/build.in --constraint requirements.lock
compile tests/deploy/requirements.lock tests/deploy/requirements.in
compile tests/servers/requirements.lock tests/servers/requirements.in
for sdk in tests/sdks/*.in; do compile "${sdk%.in}.lock" "$sdk"; done
compile loadtest/peers/fastmcp.lock loadtest/peers/fastmcp.in
compile loadtest/peers/mcp-proxy.lock loadtest/peers/mcp-proxy.in
npm install --prefix tests/node --package-lock-only --loglevel=error
npm install --prefix tests/deploy/models --package-lock-only --loglevel=error
