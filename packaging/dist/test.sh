#!/usr/bin/env bash
# Checks the files of a release in build/dist; `make dist` runs it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
dist=$PWD/build/dist
again=$(mktemp -d)
trap 'rm -rf "$again"' EXIT

fail() {
    printf 'dist: %s\n' "$*" >&2
    exit 1
}

(cd "$dist" && sha256sum --quiet --check SHA256SUMS) || fail "the checksums do not match"
named=$(awk '{ print $2 }' "$dist/SHA256SUMS" | sort)
there=$(cd "$dist" && printf '%s\n' hikkoshi-* | sort)
[[ $named == "$there" ]] || fail "SHA256SUMS does not name all files"

binary=$(echo "$dist"/hikkoshi-*-x86_64-linux.tar.gz)
top=$(basename "$binary" .tar.gz)
list=$(tar -tzf "$binary")
for wanted in bin/hikkoshi share/man/man1/hikkoshi.1 share/man/man1/hikkoshi-migrate.1 \
    share/bash-completion/completions/hikkoshi share/zsh/site-functions/_hikkoshi \
    share/fish/vendor_completions.d/hikkoshi.fish lib/systemd/system/hikkoshi-receive@.service \
    lib/tmpfiles.d/hikkoshi.conf libexec/hikkoshi/receive-unit share/doc/hikkoshi/LICENSE-MIT share/doc/hikkoshi/LICENSE-APACHE \
    libexec/hikkoshi/check-removable share/doc/hikkoshi/examples/migrate-guest share/doc/hikkoshi/THIRD-PARTY-LICENSES share/doc/hikkoshi/docs/operating.md; do
    grep -Fx "$top/$wanted" <<<"$list" >/dev/null || fail "$wanted is not in $(basename "$binary")"
done
for unit in packaging/systemd/*; do
    grep -Fx "$top/lib/systemd/system/${unit##*/}" <<<"$list" >/dev/null || fail "$unit is not in $(basename "$binary")"
done
tar -tzf "${binary/-x86_64-linux/}" | grep -E '^hikkoshi-[^/]*/Cargo.lock$' >/dev/null || fail "the source has no Cargo.lock"

# Unpacked as for /usr/local, the program runs, and its units name it there.
mkdir "$again/root"
tar -xzf "$binary" -C "$again/root" --strip-components=1
# docs/installing.md names what it is linked with: the C library, and libvirt.
linked=$(readelf --dynamic "$again/root/bin/hikkoshi" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' |
    grep -vE '^(ld-linux-x86-64|libc|libm|libgcc_s|libvirt|libvirt-qemu)\.so\.[0-9]+$') || true
[[ -z $linked ]] || fail "the program is also linked with $linked"
libvirt=$PWD/build/libvirt/root/usr/lib/x86_64-linux-gnu
version=$(LD_LIBRARY_PATH=$libvirt "$again/root/bin/hikkoshi" --version) || fail "the program does not run"
[[ $version == "hikkoshi "*" ($(git log -1 --abbrev=10 --format='%h %cs'))" ]] ||
    fail "the program is of another revision than the archives: $version"
# docs/installing.md names the earliest versions of these libraries.
symbols=$(objdump --dynamic-syms "$again/root/bin/hikkoshi")
for limit in GLIBC_2.36 LIBVIRT_8.2.0 LIBVIRT_QEMU_8.2.0; do
    newest=$({ echo $limit && grep -oE "\b${limit%_*}_[0-9][0-9.]*" <<<"$symbols"; } | sort --version-sort | tail -n 1)
    [[ $newest == "$limit" ]] || fail "the program needs $newest, and docs/installing.md says $limit"
done
grep -F '/usr/local/bin/hikkoshi' "$again/root/lib/systemd/system/hikkoshi-receive@.service" >/dev/null ||
    fail "the units do not name /usr/local/bin/hikkoshi"
for path in "$PWD" "${CARGO_HOME:-$HOME/.cargo}"; do
    ! grep -rF -- "$path" "$again/root" >/dev/null || fail "the archive has a path of this machine: $path"
done

# As docs/installing.md says, for another folder than /usr/local: what is unpacked is the same, the modes
# of folders that are there stay, and no file is left when it is removed.
local=$again/local installing=$PWD/docs/installing.md
documented() {
    (cd "$dist" && bash -euo pipefail -c "$(awk -v block="$1" '/^The services:/ { exit } /^An archive of the program/ { inside = 1 }
        inside && /^```/ { fences++; next } fences == 2 * block - 1 && !/system[dc]/ { sub(/^# /, ""); print }' "$installing" |
        sed -e "s#/usr/local#$local#g" -e "s#hikkoshi-[0-9.]*-x86_64-linux#$top#")")
}
mkdir -p "$local/lib"
chmod 2775 "$local/lib"
documented 1 >/dev/null || fail "unpacking it as documented fails"
diff -r "$again/root" "$local" || fail "the archive is unpacked in another way as documented"
[[ $(stat -c %a "$local/lib") == 2775 ]] || fail "unpacking it changes the mode of a folder"
documented 2 || fail "removing it as documented fails"
left=$(find "$local" ! -type d)
[[ ! $left ]] || fail "removing it as documented leaves: $left"

# Once more: the same bytes.
OUTPUT=$again/dist packaging/dist/build.sh >/dev/null
diff "$dist/SHA256SUMS" "$again/dist/SHA256SUMS" || fail "a second run gives other bytes"

# The SBOM names each crate that is linked.
sbom=$(echo "$dist"/hikkoshi-*.cdx.json)
cargo run --quiet --locked --package hikkoshi-third-party -- check-sbom "$sbom"
echo "dist: archives, checksums and SBOM: as they should be"
