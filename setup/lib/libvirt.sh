# libvirt: its daemons for QEMU, virsh, and the headers to build with, together with the libraries
# that the host does not have. The folder `root` has to be laid over the root of a namespace:
# libvirt finds its files by absolute paths.

setup_libvirt() {
    local folder=$build/libvirt
    [[ ! -e $folder/.done ]] || return 0
    prepare_private_apt
    say "libvirt from $codename"
    rm -rf "$folder"
    local package needed=''
    for package in libvirt-daemon libvirt-daemon-driver-qemu libvirt-clients libvirt-dev; do
        needed+=$(closure "$package" "$codename" 'libvirt*')$'\n'
    done
    local wanted=() name package_version
    while read -r name package_version; do
        case $name in
        libvirt*) ;;
        # The C library must match the host's loader.
        libc6 | libc-bin) continue ;;
        lib*) ! machine_has "$name" "$package_version" || continue ;;
        *) continue ;;
        esac
        wanted+=("$name=$package_version")
    done < <(sort -u <<<"$needed")
    fetch_and_unpack "$folder/root" "${wanted[@]}"
    # `/lib` of a host with a merged `/usr` is a link that a folder would hide.
    if [[ -d $folder/root/lib ]]; then
        cp -a "$folder/root/lib/." "$folder/root/usr/lib"
        rm -r "$folder/root/lib"
    fi
    rm -rf "$folder"/root/usr/share/{doc,man,lintian,bug,locale}
    # For builds on this host.
    sed -i "s#=/usr#=$folder/root/usr#" "$folder"/root/usr/lib/x86_64-linux-gnu/pkgconfig/libvirt*.pc
    printf '%s\n' "${wanted[@]}" >"$folder/.done"
}
