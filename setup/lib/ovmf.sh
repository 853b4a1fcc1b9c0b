# OVMF, the UEFI firmware of virtual machines: code, and a template of the variable store.

setup_ovmf() {
    local folder=$build/ovmf
    [[ ! -e $folder/.done ]] || return 0
    prepare_private_apt
    say "OVMF from $codename"
    rm -rf "$folder"
    fetch_and_unpack "$folder/root" ovmf
    local part
    for part in CODE VARS; do
        [[ -f $folder/root/usr/share/OVMF/OVMF_${part}_4M.fd ]] || fail \
            "the package ovmf contains no OVMF_${part}_4M.fd" "The layout of the package has changed."
        ln -sfn "root/usr/share/OVMF/OVMF_${part}_4M.fd" "$folder/${part,,}.fd"
    done
    : >"$folder/.done"
}
