# OpenSSH's server and client, for tests of `migrate --ssh` between two namespaces, with all of their
# libraries: the roots of newer libvirts have other ones than this host.

setup_openssh() {
    local folder=$build/openssh
    # Run it; an earlier set-up has left out the libraries of this host.
    if [[ -e $folder/.done && -e $folder/root/usr/lib/x86_64-linux-gnu/libcrypto.so.3 ]] &&
        "$folder/run" ssh -V 2>/dev/null; then return 0; fi
    prepare_private_apt
    say "OpenSSH from $codename"
    rm -rf "$folder"
    local needed
    needed=$(closure openssh-server "$codename" openssh-server openssh-client)
    local wanted=() name package_version
    while read -r name package_version; do
        case $name in
        # The C library must match the host's loader.
        libc6 | libc-bin) continue ;;
        openssh-server | openssh-client | lib*) ;;
        *) continue ;;
        esac
        wanted+=("$name=$package_version")
    done <<<"$needed"
    fetch_and_unpack "$folder/root" "${wanted[@]}"
    rm -rf "$folder"/root/usr/share/{doc,man,lintian,bug}
    cat >"$folder/run" <<'RUN'
#!/bin/sh
# Executes a program of this folder (ssh, sshd, ssh-keygen), with the libraries that were unpacked
# with it.
root=$(CDPATH= cd -- "$(dirname -- "$0")" && pwd)/root
LD_LIBRARY_PATH=$root/usr/lib/x86_64-linux-gnu:$root/lib/x86_64-linux-gnu${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export LD_LIBRARY_PATH
program=$1
shift
case $program in
sshd) exec "$root/usr/sbin/sshd" "$@" ;;
*) exec "$root/usr/bin/$program" "$@" ;;
esac
RUN
    chmod +x "$folder/run"
    local answer
    answer=$("$folder/run" ssh -V 2>&1) || true
    [[ $answer == OpenSSH* ]] || fail "OpenSSH was unpacked but does not run" "$answer"
    printf '%s\n' "$answer" >"$folder/.done"
}
