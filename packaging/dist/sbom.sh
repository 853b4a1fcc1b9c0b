#!/usr/bin/env bash
# Writes the crates that are in the program, and what each depends on, as CycloneDX: `sbom.sh FILE`.
#
# cargo-cyclonedx makes it. It is built once into build/cargo-tools, in the version below.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
readonly tool_version=0.5.9
to=$1
tools=$PWD/build/cargo-tools
if [[ $("$tools/bin/cargo-cyclonedx" cyclonedx --version 2>/dev/null) != *" $tool_version" ]]; then
    cargo install --quiet --locked --root "$tools" --target-dir "$tools/target" "cargo-cyclonedx@$tool_version"
    rm -rf "$tools/target"
fi
# It writes beside each manifest of the workspace: in a copy of these.
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
git ls-files -z -- '*.toml' Cargo.lock ':(glob)**/src/**' ':(glob)**/build.rs' ':(glob)**/benches/**' \
    ':(glob)**/tests/**.rs' ':(glob)**/examples/**' rust-toolchain.toml | xargs -0 cp --parents -t "$copy"
"$tools/bin/cargo-cyclonedx" cyclonedx --quiet --manifest-path "$copy/crates/hikkoshi/Cargo.toml" \
    --format json --spec-version 1.5 --all-features --target x86_64-unknown-linux-gnu --no-build-deps
# Paths of this machine, a serial number and a time are of no use to others.
sed -e "s#$copy/*##g" -e '/"serialNumber"/d' "$copy/crates/hikkoshi/hikkoshi.cdx.json" >"$to"
