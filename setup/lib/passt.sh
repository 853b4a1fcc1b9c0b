# passt, which connects a guest to the host's network without privileges. That of the next release,
# because the machine's own has no vhost-user.

setup_passt() {
    local folder=$build/passt
    # Run it: the build folder may have been moved.
    if [[ -e $folder/.done ]] && "$folder/passt" --version >/dev/null 2>&1; then return 0; fi
    prepare_private_apt
    say "passt from $release"
    rm -rf "$folder"
    local needed
    needed=$(closure passt "$release" passt)
    local wanted=() name package_version
    while read -r name package_version; do
        case $name in
        passt | lib*) wanted+=("$name=$package_version") ;;
        # Programs and scripts that are needed only during installation.
        *) ;;
        esac
    done <<<"$needed"
    fetch_and_unpack "$folder/root" "${wanted[@]}"
    rm -rf "$folder"/root/usr/share/{doc,man,lintian,bug}
    local program
    # One of these executes the other if the processor has AVX2.
    for program in "$folder"/root/usr/bin/passt "$folder"/root/usr/bin/passt.avx2; do
        [[ ! -f $program ]] || use_own_libraries "$program" "$folder/root"
    done
    ln -sfn root/usr/bin/passt "$folder/passt"
    # It prints its version to a terminal only.
    "$folder/passt" --version >/dev/null 2>&1 || fail "passt was unpacked but does not run" \
        "$("$folder/passt" --version 2>&1 | head -n 1)"
    awk '$1 == "passt" { print $2 }' <<<"$needed" >"$folder/.done"
}
