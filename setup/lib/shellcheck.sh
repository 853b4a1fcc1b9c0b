# The distribution's shellcheck, with which `make lint` checks shell scripts.

setup_shellcheck() {
    local folder=$build/shellcheck
    # Run it: a library that was present at setup may be missing now.
    if [[ -e $folder/.done ]] && "$folder/run" --version >/dev/null 2>&1; then return 0; fi
    prepare_private_apt
    say "shellcheck from $codename"
    rm -rf "$folder"

    local needed
    needed=$(closure shellcheck "$codename" shellcheck)
    [[ -n $needed ]] || fail "apt cannot install shellcheck from $codename" \
        "apt says: $(tail -n 1 "$private_apt/resolve.log")"
    local wanted=() name package_version
    while read -r name package_version; do
        case $name in
        shellcheck) ;;
        # The C library must match the host's loader.
        libc6 | libc-bin) continue ;;
        lib*) ! machine_has "$name" "$package_version" || continue ;;
        *) continue ;;
        esac
        wanted+=("$name=$package_version")
    done <<<"$needed"

    fetch_and_unpack "$folder/root" "${wanted[@]}"
    rm -rf "$folder"/root/usr/share
    cat >"$folder/run" <<'RUN'
#!/bin/sh
# Executes this folder's shellcheck, with the libraries that were unpacked with it.
root=$(CDPATH= cd -- "$(dirname -- "$0")" && pwd)/root
LD_LIBRARY_PATH=$root/usr/lib/x86_64-linux-gnu:$root/lib/x86_64-linux-gnu${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export LD_LIBRARY_PATH
exec "$root/usr/bin/shellcheck" "$@"
RUN
    chmod +x "$folder/run"
    local answer
    answer=$("$folder/run" --version 2>&1 | sed -n 's/^version: //p') || true
    [[ -n $answer ]] || fail "shellcheck was unpacked but does not run" \
        "$("$folder/run" --version 2>&1 | tail -n 1)"
    printf '%s\n' "$answer" >"$folder/.done"
}
