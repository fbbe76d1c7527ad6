#!/usr/bin/env bash
# Usage: make-peers.sh go|rust|jvm DIR. Builds the programs of tests/e2e/peers/LANGUAGE into DIR, by the toolchain of
# that language, which must be on PATH.
set -euo pipefail
cd "$(dirname "$0")/.."
mkdir -p "$2"
dir=$(cd "$2" && pwd)
echo "building the $1 peers of the tests"
case $1 in
  go)
    cd tests/e2e/peers/go
    go build -mod=readonly -ldflags='-s -w' -o "$dir/" ./... # nobody debugs them
    ;;
  rust)
    # A copy, since cargo writes its lock file, which names an index by its address, beside the manifest.
    cp -R tests/e2e/peers/rust/. "$dir/source"
    # What it builds is kept where the user keeps such things, as Go does: a clone of this tree builds only what is ours.
    target=${XDG_CACHE_HOME:-$HOME/.cache}/stagedoor-peers
    cargo build --quiet --manifest-path "$dir/source/Cargo.toml" --target-dir "$target"
    cp "$target/debug/rmcp-client" "$dir/"
    ;;
  jvm)
    # What takes a JVM longest is to become quick, which is for programs that run for longer.
    export MAVEN_OPTS="-XX:TieredStopAtLevel=1 -XX:+UseSerialGC ${MAVEN_OPTS:-}"
    mvn --quiet --batch-mode --file tests/e2e/peers/jvm/pom.xml -DbuildDirectory="$dir" package
    ;;
esac
