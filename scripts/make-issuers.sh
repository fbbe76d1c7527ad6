#!/usr/bin/env bash
# Usage: make-issuers.sh DIR. Brings the authorization servers of tests/e2e/test_issuers.py into DIR: Keycloak and
# mock-oauth2-server, by Maven, which must be on PATH.
set -euo pipefail
cd "$(dirname "$0")/.."
mkdir -p "$1"
dir=$(cd "$1" && pwd)
echo "fetching Keycloak and mock-oauth2-server for the tests (190 MB)"
mvn --quiet --batch-mode --file tests/e2e/issuers/pom.xml -DbuildDirectory="$dir" package
chmod +x "$dir"/keycloak/*/bin/kc.sh
