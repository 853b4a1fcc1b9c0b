# Bochs, which emulates the processor on which the second-stage tables are tested: its newer models
# have VMX with EPT, accessed/dirty bits and page-modification logging, on any host.

# The release that ept/bochs was written for. Others have different names for processors and
# options.
readonly bochs_version=2.7

setup_bochs() {
    local folder=$build/bochs
    # Run it: a library that was present at setup may be missing now.
    if [[ -e $folder/.done ]] && bochs_answers "$folder"; then return 0; fi
    prepare_private_apt
    say "Bochs $bochs_version from $codename"
    rm -rf "$folder"

    local needed
    # Bochs needs one of its display packages; the terminal's has the fewest dependencies. It
    # needs bochs, which needs the firmware.
    needed=$(closure bochs-term "$codename" 'bochs*' vgabios)
    local found
    found=$(awk '$1 == "bochs" { print $2 }' <<<"$needed")
    [[ $found == "$bochs_version"[.+-]* ]] || fail \
        "$codename has bochs $found, not $bochs_version" "ept/bochs is tested with $bochs_version."

    # Perl modules are used by the menu only, which is never opened.
    local wanted
    mapfile -t wanted < <(grep -v '^lib.*-perl ' <<<"$needed" |
        with_missing_libraries bochs bochs-term bochsbios vgabios)

    say "Bochs $bochs_version: fetching ${#wanted[@]} packages"
    fetch_and_unpack "$folder/root" "${wanted[@]}"
    rm -rf "$folder"/root/usr/share/{doc,man,icons,applications,locale,lintian,bug}
    write_bochs_runner "$folder"
    bochs_answers "$folder" || fail "Bochs $bochs_version was unpacked but does not run" \
        "$("$folder/run" --help 2>&1 | tail -n 1)"
    printf '%s\n' "$found" >"$folder/.done"
}

bochs_answers() { [[ $("$1/run" --help 2>&1) == *"Bochs x86 Emulator $bochs_version"* ]]; }

# `run` executes Bochs (exec), so that its process id is Bochs's. The two firmware images are beside
# it under fixed names, which the configuration uses.
write_bochs_runner() {
    ln -sfn root/usr/share/bochs/BIOS-bochs-latest "$1/bios"
    ln -sfn root/usr/share/vgabios/vgabios.bin "$1/vgabios"
    cat >"$1/run" <<'RUN'
#!/bin/sh
# Executes this folder's Bochs, with the libraries, modules and firmware that were unpacked with it.
root=$(CDPATH= cd -- "$(dirname -- "$0")" && pwd)/root
LD_LIBRARY_PATH=$root/usr/lib/x86_64-linux-gnu:$root/lib/x86_64-linux-gnu${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
LTDL_LIBRARY_PATH=$root/usr/lib/x86_64-linux-gnu/bochs/plugins
BXSHARE=$root/usr/share/bochs
export LD_LIBRARY_PATH LTDL_LIBRARY_PATH BXSHARE
exec "$root/usr/bin/bochs-bin" "$@"
RUN
    chmod +x "$1/run"
}
