#!/usr/bin/env bash
# Usage: make-peers.sh go|rust|jvm DIR. Builds the programs of tests/e2e/peers/LANGUAGE into DIR, by the toolchain of
# that language, which must be on PATH.
set -euo pipefail
cd "$(dirname "$0")/.."
mkdir -p "$2"
dir=$(cd "$2" && pwd)
cd "tests/e2e/peers/$1"
echo "building the $1 peers of the tests"
case $1 in
  go) go build -mod=readonly -o "$dir/" ./... ;;
  rust) cargo build --quiet --target-dir "$dir/target" && cp "$dir/target/debug/rmcp-client" "$dir/" ;;
  jvm) mvn --quiet --batch-mode -DbuildDirectory="$dir/target" package && cp "$dir/target/java-client.jar" "$dir/" ;;
esac
