# bindfs, which shows a folder as a FUSE file system of its own: for tests of disks that several
# hosts share.

setup_bindfs() {
    local folder=$build/bindfs
    # Run it: a library that was present at setup may be missing now.
    if [[ -e $folder/.done ]] && "$folder/run" --version >/dev/null 2>&1; then return 0; fi
    prepare_private_apt
    say "bindfs from $codename"
    rm -rf "$folder"
    local needed
    needed=$(closure bindfs "$codename" bindfs)
    [[ -n $needed ]] || fail "apt cannot install bindfs from $codename" \
        "apt says: $(tail -n 1 "$private_apt/resolve.log")"
    local wanted=() name package_version
    while read -r name package_version; do
        case $name in
        bindfs) ;;
        # The C library must match the host's loader.
        libc6 | libc-bin) continue ;;
        lib*) ! machine_has "$name" "$package_version" || continue ;;
        *) continue ;;
        esac
        wanted+=("$name=$package_version")
    done <<<"$needed"
    fetch_and_unpack "$folder/root" "${wanted[@]}"
    rm -rf "$folder"/root/usr/share/{doc,man,lintian,bug}
    cat >"$folder/run" <<'RUN'
#!/bin/sh
# Executes this folder's bindfs, with the libraries that were unpacked with it.
root=$(CDPATH= cd -- "$(dirname -- "$0")" && pwd)/root
LD_LIBRARY_PATH=$root/usr/lib/x86_64-linux-gnu:$root/lib/x86_64-linux-gnu${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export LD_LIBRARY_PATH
exec "$root/usr/bin/bindfs" "$@"
RUN
    chmod +x "$folder/run"
    local answer
    answer=$("$folder/run" --version 2>&1 | head -n 1) || true
    [[ $answer == bindfs* ]] || fail "bindfs was unpacked but does not run" "$answer"
    printf '%s\n' "$answer" >"$folder/.done"
}
