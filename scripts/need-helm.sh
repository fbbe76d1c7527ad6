#!/usr/bin/env bash
# Makes sure that there is a helm to render the chart with: the one on PATH, or else build/tools/helm, which Go builds.
# Without Go the tests of the chart are skipped.
set -euo pipefail
cd "$(dirname "$0")/.."
version=v3.22.0
mkdir -p build/tools
if [ -x build/tools/helm ] || command -v helm >/dev/null; then exit 0; fi
if ! command -v go >/dev/null; then
  echo "no helm, and no Go to build it: the tests of the chart are skipped"
  exit 0
fi
echo "building helm $version"
GOBIN=$PWD/build/tools go install -ldflags='-s -w' "helm.sh/helm/v3/cmd/helm@$version"
