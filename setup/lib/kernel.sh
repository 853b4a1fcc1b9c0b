# The guest's kernel and its busybox, unpacked and not installed.

# The cloud flavour: the same kernel with fewer drivers, a quarter of the size, quicker to boot.
readonly kernel_package=linux-image-cloud-amd64

setup_kernel() {
    local folder=$build/kernel
    [[ ! -e $folder/.done ]] || return 0
    prepare_private_apt
    # The named package is empty and depends on the versioned one.
    local real
    real=$(apt_cache show --no-all-versions "$kernel_package" |
        sed -nE 's/^Depends:.*(linux-image-[0-9][^ ]*) \(= ([^)]+)\).*/\1=\2/p')
    [[ -n $real ]] || fail "$kernel_package names no kernel image in $codename" "Does \`apt-cache show $kernel_package\` know it?"
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
