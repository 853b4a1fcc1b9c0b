#!/usr/bin/env bash
# Builds the files of a release once more, in another folder, and compares them with build/dist:
# `make test-dist` runs it. All that is taken over is libvirt's library and the tool for the SBOM.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
dist=$PWD/build/dist
[[ -s $dist/SHA256SUMS ]] || { echo "$dist is missing: run \`make dist\`" >&2; exit 1; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Its path has another length.
again=$work/another/folder/for/the/same/revision
git clone --quiet --no-local "$PWD" "$again"
git -C "$again" checkout --quiet --detach "$(git rev-parse HEAD)"
mkdir "$again/build"
cp -a build/libvirt build/cargo-tools "$again/build"
cd "$again"
# What `make setup` fetches is there.
make --no-print-directory --old-file=setup build-packaged
packaging/dist/build.sh >/dev/null
diff "$dist/SHA256SUMS" build/dist/SHA256SUMS || {
    echo "dist: the same revision gives other bytes in another folder" >&2
    exit 1
}
echo "dist: built again in another folder, with the same bytes"
