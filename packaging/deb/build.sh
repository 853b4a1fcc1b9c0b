#!/usr/bin/env bash
# Builds the Debian package of the program that `make deb` has built, and checks it with lintian. The
# result is in build/deb. As root.
#
# Debian's tools want `debian/` at the top: the tracked files are copied, and it is moved there.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
project=$PWD
output=$project/build/deb
program=$(realpath "${PROGRAM:-target/package/release/hikkoshi}")
[[ -x $program ]] || { echo "$program is missing: run \`make deb\`" >&2; exit 1; }

rm -rf "$output"
tree=$output/hikkoshi
mkdir -p "$tree"
git ls-files -z --cached --others --exclude-standard -- . ':!fuzz/corpora' ':!docs/benchmarks' |
    xargs -0 cp --parents -t "$tree"
mv "$tree/packaging/debian" "$tree/debian"
mkdir -p "$tree/prebuilt"
cp "$program" "$tree/prebuilt/hikkoshi"
cargo run --quiet --locked --package hikkoshi-third-party -- licences >"$tree/prebuilt/THIRD-PARTY-LICENSES"
# All files in the package have the time of the revision.
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)

cat >"$output/build-inside.sh" <<INSIDE
set -euo pipefail
export SOURCE_DATE_EPOCH=$SOURCE_DATE_EPOCH
cd /srv/shared/hikkoshi
dpkg-buildpackage --build=binary --unsigned-source --unsigned-changes
cd ..
lintian --fail-on error,warning --display-info --pedantic --allow-root ./*.changes
INSIDE
unshare --mount --uts --ipc --pid --fork --kill-child packaging/deb/in-root.sh \
    "$project/build/debian-roots/package" "$output" bash /srv/shared/build-inside.sh >"$output/build.log" 2>&1 || {
    tail -n 40 "$output/build.log" >&2
    echo "building the package failed: all of its output is in $output/build.log" >&2
    exit 1
}
grep -E '^[NIWEP]: ' "$output/build.log" || true
rm -rf "$tree" "$output/build-inside.sh"
package=$(echo "$output"/hikkoshi_*.deb)
dpkg-deb --field "$package" Package Version Depends Installed-Size
ls -l "$package"
