# The guest's kernels and its busybox, unpacked and not installed.

# The cloud flavour: the same kernel with fewer drivers, a quarter of the size, quicker to boot.
readonly kernel_package=linux-image-cloud-amd64

# The full flavour, for devices that no cloud has: AHCI, USB, graphics, e1000e.
readonly devices_kernel_package=linux-image-amd64

setup_kernel() {
    unpack_kernel "$build/kernel" "$kernel_package"
    [[ -e $build/kernel/vmlinux ]] || unpack_vmlinux "$build/kernel"
}

setup_devices_kernel() { unpack_kernel "$build/kernel-devices" "$devices_kernel_package"; }

# Unpacks kernel package $2 into folder $1.
unpack_kernel() {
    local folder=$1 package=$2
    [[ ! -e $folder/.done ]] || return 0
    prepare_private_apt
    # The named package is empty and depends on the versioned one.
    local real
    real=$(apt_cache show --no-all-versions "$package" |
        sed -nE 's/^Depends:.*(linux-image-[0-9][^ ]*) \(= ([^)]+)\).*/\1=\2/p')
    [[ -n $real ]] || fail "$package names no kernel image in $codename" "Does \`apt-cache show $package\` know it?"
    say "kernel ${real%%=*}"
    rm -rf "$folder"
    fetch_and_unpack "$folder/root" "$real"
    local images=("$folder"/root/boot/vmlinuz-*)
    [[ -f ${images[0]} ]] || fail "${real%%=*} contains no boot/vmlinuz" "The layout of the package has changed."
    # Fixed names, so that the version need not be known.
    ln -sfn "root/boot/$(basename "${images[0]}")" "$folder/vmlinuz"
    ln -sfn "root/lib/modules/$(basename "${images[0]}" | sed 's/^vmlinuz-//')" "$folder/modules"
    printf '%s\n' "$real" >"$folder/.done"
}

# Decompresses $1/vmlinuz into $1/vmlinux, which QEMU starts directly (PVH): under emulation the kernel
# takes a quarter of the time of its start to decompress itself.
unpack_vmlinux() {
    local folder=$1 start
    # The magic number of a legacy LZ4 frame; what follows the frame is not part of it.
    start=$(LC_ALL=C grep --only-matching --byte-offset --text --perl-regexp --max-count=1 \
        '\x02\x21\x4c\x18' "$folder/vmlinuz" | head -n 1 | cut -d : -f 1)
    [[ -z $start ]] || tail -c "+$((start + 1))" "$folder/vmlinuz" | lz4 -dcq >"$folder/.vmlinux" 2>/dev/null || true
    [[ -s $folder/.vmlinux && $(head -c 4 "$folder/.vmlinux") == $'\x7fELF' ]] ||
        fail "$folder/vmlinuz contains no kernel compressed by LZ4" "Debian may compress it in another way now."
    mv "$folder/.vmlinux" "$folder/vmlinux"
}

# Kernels under which the dirty log is tested: the newest of each series that the next release and its
# backports have. 6.1 is the guest's.
readonly tested_kernels=(6.12 6.18 7.0 7.3)

setup_kernels() {
    mkdir -p "$build/kernels"
    ln -sfn ../kernel "$build/kernels/6.1"
    local series
    for series in "${tested_kernels[@]}"; do
        with_release trixie unpack_kernel_image "$build/kernels/$series" "$series"
    done
}

# Unpacks the image of the newest kernel of series $2 into folder $1, without modules if it can be had
# without.
unpack_kernel_image() {
    local folder=$1 series=$2
    [[ ! -e $folder/.done ]] || return 0
    prepare_private_apt
    local kind found=
    for kind in binary image; do
        found=$(apt_cache search --names-only "^linux-$kind-${series/./\\.}\\.[0-9]+\\+deb13-cloud-amd64$" |
            cut -d ' ' -f 1 | sort --version-sort | tail -n 1)
        [[ -z $found ]] || break
    done
    [[ -n $found ]] || fail "no kernel $series in Debian $release and its backports" \
        "Has a newer series replaced it? Then change tested_kernels in setup/lib/kernel.sh."
    say "kernel $found"
    rm -rf "$folder"
    fetch_and_unpack "$folder/root" "$found"
    local images=("$folder"/root/boot/vmlinuz-* "$folder"/root/usr/lib/modules/*/vmlinuz) image
    for image in "${images[@]}"; do
        [[ ! -f $image ]] || ln -sfn "${image#"$folder/"}" "$folder/vmlinuz"
    done
    [[ -e $folder/vmlinuz ]] || fail "$found contains no vmlinuz" "The layout of the package has changed."
    printf '%s\n' "$found" >"$folder/.done"
}

setup_busybox() {
    local folder=$build/busybox
    [[ ! -e $folder/.done ]] || return 0
    prepare_private_apt
    say "busybox"
    rm -rf "$folder"
    fetch_and_unpack "$folder/root" busybox-static
    [[ -x $folder/root/bin/busybox ]] || fail "busybox-static contains no bin/busybox" "The layout of the package has changed."
    ln -sfn root/bin/busybox "$folder/busybox"
    : >"$folder/.done"
}
