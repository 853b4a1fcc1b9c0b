# Corosync, Pacemaker and crmsh, with everything that the host does not have. The folder `root` has to
# be laid over the root of a namespace: the programs find each other by absolute paths.

setup_pacemaker() {
    local folder=$build/pacemaker
    [[ ! -e $folder/.done ]] || return 0
    prepare_private_apt
    say "Corosync and Pacemaker from $codename"
    rm -rf "$folder"
    local package needed=''
    for package in pacemaker corosync crmsh; do
        needed+=$(closure "$package" "$codename" 'pacemaker*' corosync crmsh)$'\n'
    done
    local wanted=() name package_version
    while read -r name package_version; do
        case $name in
        # The C library must match the host's loader.
        '' | libc6 | libc-bin) continue ;;
        esac
        machine_has "$name" "$package_version" || wanted+=("$name=$package_version")
    done < <(sort -u <<<"$needed")
    fetch_and_unpack "$folder/root" "${wanted[@]}"
    # `/lib` and `/sbin` of a host with a merged `/usr` are links that a folder would hide.
    local merged
    for merged in bin sbin lib; do
        [[ -d $folder/root/$merged ]] || continue
        mkdir -p "$folder/root/usr/$merged"
        cp -a "$folder/root/$merged/." "$folder/root/usr/$merged"
        rm -r "${folder:?}/root/$merged"
    done
    # Nothing of the host's own is replaced, and no configuration but Pacemaker's own is needed.
    rm -rf "$folder"/root/usr/share/{doc,man,lintian,bug,locale} "$folder"/root/etc/{init.d,default,cron*,logrotate.d}
    printf '%s\n' "${wanted[@]}" >"$folder/.done"
}
