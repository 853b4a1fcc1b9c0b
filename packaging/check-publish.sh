#!/usr/bin/env bash
# Checks that every crate that can be published has what crates.io and its readers want, and does
# everything for all of them that `cargo publish` does but the upload: each is packaged, and built
# from its package. `make check-publish` runs it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

fail() {
    printf 'check-publish: %s\n' "$*" >&2
    exit 1
}

cargo run --quiet --locked --package hikkoshi-third-party -- check-manifests
mapfile -t crates < <(cargo run --quiet --locked --package hikkoshi-third-party -- published)
packages=()
for one in "${crates[@]}"; do packages+=(--package "$one"); done
rm -rf target/package-crates/package
export CARGO_TARGET_DIR=target/package-crates
cargo publish --dry-run --locked --allow-dirty "${packages[@]}"
# A dry run leaves no packages where cargo documents them.
cargo package --quiet --no-verify --locked --allow-dirty "${packages[@]}"
for one in "${crates[@]}"; do
    file=$(echo target/package-crates/package/"$one"-[0-9]*.crate)
    files=$(tar -tzf "$file")
    for wanted in README.md LICENSE-MIT LICENSE-APACHE; do
        grep "/$wanted\$" <<<"$files" >/dev/null || fail "$one has no $wanted"
    done
    # crates.io accepts 10 MB; a library of this kind should be far below.
    size=$(stat --format %s "$file")
    ((size <= 1 << 20)) || fail "the package of $one has $size bytes"
done
# A workspace of its own.
(cd ept && CARGO_TARGET_DIR=../$CARGO_TARGET_DIR cargo publish --dry-run --locked --allow-dirty --package hikkoshi-ept)
echo "check-publish: ${#crates[@]} crates and hikkoshi-ept can be published"
