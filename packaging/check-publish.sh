#!/usr/bin/env bash
# Checks that every crate that can be published has what crates.io and its readers want, and
# packages them all, as `cargo publish` would; `make check-publish` runs it. With VERIFY=1 each is
# also built from its package.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

fail() {
    printf 'check-publish: %s\n' "$*" >&2
    exit 1
}

cargo run --quiet --locked --package hikkoshi-third-party -- check-manifests
mapfile -t crates < <(cargo run --quiet --locked --package hikkoshi-third-party -- published)
((${#crates[@]} > 10)) || fail "only ${#crates[@]} crates can be published"
verify=(--no-verify)
[[ ! ${VERIFY:-} ]] || verify=()
packages=()
for one in "${crates[@]}"; do packages+=(--package "$one"); done
rm -rf target/package-crates
CARGO_TARGET_DIR=target/package-crates cargo package --locked --allow-dirty "${verify[@]}" "${packages[@]}"
for one in "${crates[@]}"; do
    file=$(echo target/package-crates/package/"$one"-[0-9]*.crate)
    files=$(tar -tzf "$file")
    for wanted in README.md LICENSE-MIT LICENSE-APACHE; do
        grep "/$wanted\$" <<<"$files" >/dev/null || fail "$one has no $wanted"
    done
done
echo "check-publish: ${#crates[@]} crates can be published"
