# A whole Debian guest: a qcow2 image with an ext4 file system, made by mmdebstrap from the same
# sources as everything else. Its kernel is build/kernel's, which QEMU boots directly.

readonly debian_packages=systemd-sysv,dbus,udev,iproute2,redis-server
readonly debian_mib=1024

setup_debian() {
    local folder=$build/debian
    # Made again when one of its files has changed.
    local made_from
    made_from=$(cat "$project"/guest/debian/* "$here/lib/debian.sh" | sha256sum)
    [[ ! -e $folder/.done || $(<"$folder/.done") != "$made_from" ]] || return 0
    [[ $(id -u) == 0 ]] || fail "making the Debian guest needs root" "Run \`setup/setup.sh debian\` as root."
    command -v mmdebstrap >/dev/null || install_tools mmdebstrap
    prepare_private_apt
    setup_qemu_img
    say "a Debian guest: $debian_packages"
    rm -rf "$folder"
    mkdir -p "$folder"
    local sources=() suite
    for suite in "$codename" "$codename-updates" "$codename-security"; do
        sources+=("$private_apt/sources/$suite".*)
    done
    local log=$folder/mmdebstrap.log
    # No documentation and no package lists in the guest.
    # shellcheck disable=SC2016 # mmdebstrap's shell expands it.
    if ! mmdebstrap --quiet --mode=root --variant=minbase --include="$debian_packages" \
        --dpkgopt=path-exclude='/usr/share/doc/*' --dpkgopt=path-exclude='/usr/share/man/*' \
        --dpkgopt=path-exclude='/usr/share/locale/*' \
        --customize-hook="copy-in $project/guest/debian/redis.conf /etc/redis" \
        --customize-hook="copy-in $project/guest/debian/hikkoshi-workload.service /etc/systemd/system" \
        --customize-hook="copy-in $project/guest/debian/customize.sh /tmp" \
        --customize-hook='chroot "$1" sh -e /tmp/customize.sh' \
        --customize-hook='rm "$1/tmp/customize.sh"' \
        "$codename" "$folder/root" "${sources[@]}" >"$log" 2>&1; then
        tail -n 20 "$log" >&2
        fail "mmdebstrap could not make the Debian guest" "Its last lines are above. Is there a network?"
    fi
    mkfs.ext4 -q -F -d "$folder/root" "$folder/disk.raw" "${debian_mib}m" || fail "mkfs.ext4 failed" "Is the disk full?"
    rm -rf "$folder/root"
    "$build/qemu-img/run" convert -f raw -O qcow2 "$folder/disk.raw" "$folder/disk.qcow2"
    rm "$folder/disk.raw"
    printf '%s\n' "$made_from" >"$folder/.done"
}
