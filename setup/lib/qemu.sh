# Several versions of QEMU, each with the libraries that the host does not have, and with a `run`
# program. That of another release has all its libraries, the C library included.

# $1: the version, which is also the name of the folder; $2: the Debian suite.
setup_qemu() {
    local version=$1 suite=$2
    local folder=$build/qemu-$version
    # Run it: a library that was present at setup may be missing now.
    if [[ -e $folder/.done ]] && "$folder/run" --version >/dev/null 2>&1; then return 0; fi
    prepare_private_apt
    say "QEMU $version from $suite"
    rm -rf "$folder"

    local needed
    needed=$(closure qemu-system-x86 "$suite" 'qemu-system-*' seabios ipxe-qemu)
    local found
    found=$(awk '$1 == "qemu-system-x86" { print $2 }' <<<"$needed")
    # Epoch, then the version proper: 1:7.2+dfsg-7…, 1:10.0.2+ds-2…
    [[ ${found#*:} == "$version"[.+-]* ]] || fail \
        "$suite has qemu-system-x86 $found, not $version" "This release of hikkoshi is tested with $version."

    local wanted=() name package_version
    while read -r name package_version; do
        case $name in
        # QEMU's own packages and firmware are always downloaded, because they must match.
        qemu-system-* | seabios | ipxe-qemu) ;;
        # The C library must match the loader: the host's, or of another release its own.
        libc6) [[ $release != "$codename" ]] || continue ;;
        lib* | zlib1g) ! machine_has "$name" "$package_version" || continue ;;
        # Programs and scripts that the libraries' packages need only during installation.
        *) continue ;;
        esac
        wanted+=("$name=$package_version")
    done <<<"$needed"

    say "QEMU $version: fetching ${#wanted[@]} packages"
    fetch_and_unpack "$folder/root" "${wanted[@]}"
    # Unused, and most of the size: debug builds of other firmware, documentation, icons.
    rm -rf "$folder"/root/usr/share/{doc,man,icons,applications,locale,lintian,bug}
    [[ $release == "$codename" ]] || use_own_libraries "$folder/root/usr/bin/qemu-system-x86_64" "$folder/root"
    write_qemu_runner "$folder"
    local answer
    answer=$("$folder/run" --version 2>&1 | head -n 1) || true
    [[ $answer == *"version $version"* ]] || fail "QEMU $version was unpacked but does not run" "$answer"
    printf '%s\n' "$found" >"$folder/.done"
    say "$answer"
}

# `run` executes QEMU (exec), so that its process id is QEMU's.
write_qemu_runner() {
    cat >"$1/run" <<'RUN'
#!/bin/sh
# Executes this folder's QEMU, with the libraries, modules and firmware that were unpacked with it.
root=$(CDPATH= cd -- "$(dirname -- "$0")" && pwd)/root
RUN
    [[ $release != "$codename" ]] || cat >>"$1/run" <<'RUN'
LD_LIBRARY_PATH=$root/usr/lib/x86_64-linux-gnu:$root/lib/x86_64-linux-gnu:$root/usr/lib/x86_64-linux-gnu/pulseaudio${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export LD_LIBRARY_PATH
RUN
    cat >>"$1/run" <<'RUN'
QEMU_MODULE_DIR=$root/usr/lib/x86_64-linux-gnu/qemu
export QEMU_MODULE_DIR
exec "$root/usr/bin/qemu-system-x86_64" -L "$root/usr/share/qemu" -L "$root/usr/share/seabios" -L "$root/usr/lib/ipxe/qemu" "$@"
RUN
    chmod +x "$1/run"
}
