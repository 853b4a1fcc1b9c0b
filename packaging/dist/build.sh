#!/usr/bin/env bash
# Makes the files of a release in build/dist (or OUTPUT); `make dist` runs it, which has built the
# program:
#
#   hikkoshi-VERSION-x86_64-linux.tar.gz   the program and what belongs to it, for /usr/local
#   hikkoshi-VERSION.tar.gz                the source, as git has it
#   hikkoshi-VERSION.cdx.json              the crates in the program (CycloneDX)
#   SHA256SUMS
#
# The same revision gives the same bytes (reproduce.sh): all times are SOURCE_DATE_EPOCH, by default
# that of the revision. So there must be nothing that is not committed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
output=${OUTPUT:-$PWD/build/dist}
program=${PROGRAM:-target/package/release/hikkoshi}
[[ -x $program ]] || { echo "$program is missing: run \`make dist\`" >&2; exit 1; }
changed=$(git status --porcelain)
[[ ! $changed ]] || { printf 'dist: commit these first, or ignore them:\n%s\n' "$changed" >&2; exit 1; }
epoch=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
version=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' Cargo.toml)

rm -rf "$output"
mkdir -p "$output"
stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT

cp "$program" "$stage/hikkoshi"
# The program writes its manual pages. The host may have no libvirt.
LD_LIBRARY_PATH=$PWD/build/libvirt/root/usr/lib/x86_64-linux-gnu \
    make --no-print-directory --silent install PROGRAM="$stage/hikkoshi" DESTDIR="$stage" PREFIX=/usr/local GENERATED="$stage/generated"
cargo run --quiet --locked --package hikkoshi-third-party -- licences >"$stage/usr/local/share/doc/hikkoshi/THIRD-PARTY-LICENSES"
name=hikkoshi-$version-x86_64-linux
mv "$stage/usr/local" "$stage/$name"

# $1: the name of the archive; the rest is passed to tar.
archive() {
    local to=$output/$1.tar.gz
    shift
    tar --sort=name --mtime="@$epoch" --owner=0 --group=0 --numeric-owner \
        --mode=go=rX,u+rw,a-s --format=ustar -c "$@" | gzip -9 --no-name >"$to"
}
archive "$name" -C "$stage" "$name"
git archive --format=tar --prefix="hikkoshi-$version/" HEAD | tar -x -C "$stage"
archive "hikkoshi-$version" -C "$stage" "hikkoshi-$version"

SOURCE_DATE_EPOCH=$epoch packaging/dist/sbom.sh "$output/hikkoshi-$version.cdx.json"
(cd "$output" && sha256sum -- hikkoshi-* >SHA256SUMS)
ls -l "$output"
