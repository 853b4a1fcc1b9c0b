# Programs of the distribution that need nothing but libraries: each in a folder of its own, where
# `run` executes it with the libraries that the machine does not have.

# $1: the program, also the name of the folder; $2: its package. Further arguments: other packages
# that belong to it.
setup_program() {
    local program=$1 package=$2
    shift 2
    local folder=$build/$program
    # Run it: a library that was present at setup may be missing now.
    if [[ -e $folder/.done ]] && "$folder/run" --version >/dev/null 2>&1; then return 0; fi
    prepare_private_apt
    say "$program from $codename"
    rm -rf "$folder"
    local needed
    local -a wanted
    needed=$(closure "$package" "$codename" "$package")
    mapfile -t wanted < <(with_missing_libraries "$package" "$@" <<<"$needed")
    fetch_and_unpack "$folder/root" "${wanted[@]}"
    rm -rf "$folder"/root/usr/share/{doc,man,lintian,bug}
    # swtpm has libraries of its own in a folder with its name.
    cat >"$folder/run" <<RUN
#!/bin/sh
# Executes this folder's $program, with the libraries that were unpacked with it.
root=\$(CDPATH= cd -- "\$(dirname -- "\$0")" && pwd)/root
libraries=\$root/usr/lib/x86_64-linux-gnu
LD_LIBRARY_PATH=\$libraries:\$libraries/$program:\$root/lib/x86_64-linux-gnu\${LD_LIBRARY_PATH:+:\$LD_LIBRARY_PATH}
export LD_LIBRARY_PATH
exec "\$root/usr/bin/$program" "\$@"
RUN
    chmod +x "$folder/run"
    local answer
    answer=$("$folder/run" --version 2>&1) || fail "$program was unpacked but does not run" "$answer"
    head -n 1 <<<"$answer" >"$folder/.done"
}

# For the test guests' disks: qcow2 images are made and checked with it.
setup_qemu_img() { setup_program qemu-img qemu-utils; }
