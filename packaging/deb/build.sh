#!/usr/bin/env bash
# Builds the Debian package of the program that `make deb` has built, and checks it with lintian. The
# result is in build/deb. As root.
#
# A revision of git that has no tag vVERSION gives the version VERSION~gitTIME.REVISION, which is
# later than that of a revision before it, and earlier than VERSION's. A source archive has no git:
# it gives the version of packaging/debian/changelog.
#
# Debian's tools want `debian/` at the top: the files are copied, and it is moved there.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
project=$PWD
output=$project/build/deb
program=$(realpath target/package/release/hikkoshi)
[[ -x $program ]] || { echo "$program is missing: run \`make deb\`" >&2; exit 1; }
version=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' Cargo.toml)
[[ $(head -n 1 packaging/debian/changelog) == "hikkoshi ($version-1) "* ]] || {
    echo "packaging/debian/changelog does not begin with $version-1, and Cargo.toml has $version" >&2
    exit 1
}

rm -rf "$output"
tree=$output/hikkoshi
mkdir -p "$tree"
if [[ -e .git ]]; then
    git ls-files -z --cached --others --exclude-standard -- . ':!fuzz/corpora' ':!docs/assets/benchmarks' |
        xargs -0 cp --parents -t "$tree"
    # All files in the package have the time of the revision.
    SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
    changed=$(git status --porcelain)
    if [[ $changed ]] || ! git describe --tags --exact-match --match "v$version" HEAD &>/dev/null; then
        version+="~git$(date --utc --date="@$SOURCE_DATE_EPOCH" +%Y%m%d%H%M%S).$(git rev-parse --short=10 HEAD)"
        version+=${changed:+.modified}
    fi
    date=$(LC_ALL=C date --utc --rfc-email --date="@$SOURCE_DATE_EPOCH")
    sed -i -e "1s/(.*)/($version-1)/" -e "s/^\( -- .*>  \).*/\1$date/" "$tree/packaging/debian/changelog"
else
    find . \( -path ./build -o -path ./target -o -path ./fuzz/corpora -o -path ./docs/assets/benchmarks \) -prune -o -type f -print0 |
        xargs -0 cp --parents -t "$tree"
    SOURCE_DATE_EPOCH=$(date --date="$(sed -n 's/^ -- .*>  //p' packaging/debian/changelog)" +%s)
fi
mv "$tree/packaging/debian" "$tree/debian"
mkdir -p "$tree/prebuilt"
cp "$program" "$tree/prebuilt/hikkoshi"
cargo run --quiet --locked --package hikkoshi-third-party -- licences >"$tree/prebuilt/THIRD-PARTY-LICENSES"

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
