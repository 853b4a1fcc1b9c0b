# bpftrace, to trace the kernel while a guest faults (bench/kernel).

setup_bpftrace() {
    local folder=$build/bpftrace
    if [[ -e $folder/.done ]] && "$folder/run" --version >/dev/null 2>&1; then return 0; fi
    prepare_private_apt
    say "bpftrace from $codename"
    rm -rf "$folder"

    local needed
    needed=$(closure bpftrace "$codename" bpftrace)
    [[ -n $needed ]] || fail "apt cannot install bpftrace from $codename" \
        "apt says: $(tail -n 1 "$private_apt/resolve.log")"
    local wanted=() name package_version
    while read -r name package_version; do
        case $name in
        bpftrace) ;;
        # The C library must match the host's loader.
        libc6 | libc-bin) continue ;;
        lib*) ! machine_has "$name" "$package_version" || continue ;;
        *) continue ;;
        esac
        wanted+=("$name=$package_version")
    done <<<"$needed"

    say "bpftrace: fetching ${#wanted[@]} packages"
    fetch_and_unpack "$folder/root" "${wanted[@]}"
    rm -rf "$folder"/root/usr/share
    cat >"$folder/run" <<'RUN'
#!/bin/sh
# Executes this folder's bpftrace, with the libraries that were unpacked with it.
root=$(CDPATH= cd -- "$(dirname -- "$0")" && pwd)/root
LD_LIBRARY_PATH=$root/usr/lib/x86_64-linux-gnu:$root/lib/x86_64-linux-gnu${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export LD_LIBRARY_PATH
exec "$root/usr/bin/bpftrace" "$@"
RUN
    chmod +x "$folder/run"
    "$folder/run" --version >/dev/null || fail "bpftrace was unpacked but does not run" \
        "$("$folder/run" --version 2>&1 | tail -n 1)"
    : >"$folder/.done"
}
