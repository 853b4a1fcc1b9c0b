# Debian roots for the package, made by mmdebstrap from the same sources as everything else. They are
# never written to (packaging/deb/in-root.sh).

# What building and checking the package needs. With libvirt's packages installed, dpkg-shlibdeps
# finds out which version of the library the program needs.
readonly package_root_packages=build-essential,debhelper,lintian,libvirt-dev,pkg-config

# A root in which the package is built.
setup_package_root() { setup_root package --variant=minbase --include="$package_root_packages"; }

# A root as after a minimal installation, in which the package is installed. It keeps its apt sources.
setup_fresh_root() { setup_root fresh --variant=minbase; }

# What the hosts of docs/operating.md have, and what checking an installed package needs: man and the
# shells. The package's dependencies are there, so that installing it needs no network.
readonly hosts_root_packages=adduser,bash-completion,dbus,fish,iproute2,libvirt0,man-db,nftables,openssh-server,openssl,procps,qemu-system-x86,qemu-utils,systemd,systemd-sysv,zsh

# A root of two hosts with guests, on which the operator's guide is executed.
setup_hosts_root() { setup_root hosts --variant=minbase --include="$hosts_root_packages"; }

# $1: the folder's name; the other arguments are passed to mmdebstrap.
setup_root() {
    local folder=$build/debian-roots/$1 name=$1
    shift
    # Made again when the options have changed.
    local made_from="$codename $*"
    [[ ! -e $folder.done || $(<"$folder.done") != "$made_from" ]] || return 0
    [[ $(id -u) == 0 ]] || fail "making a Debian root needs root" "Run \`setup/setup.sh $name-root\` as root."
    command -v mmdebstrap >/dev/null || install_tools mmdebstrap
    prepare_private_apt
    say "a Debian root: $name"
    rm -rf "$folder" "$folder.done"
    mkdir -p "$build/debian-roots"
    local sources=() suite
    for suite in "$codename" "$codename-updates" "$codename-security"; do
        sources+=("$private_apt/sources/$suite".*)
    done
    local log=$folder.log
    if ! mmdebstrap --quiet --mode=root "$@" "$codename" "$folder" "${sources[@]}" >"$log" 2>&1; then
        tail -n 20 "$log" >&2
        fail "mmdebstrap could not make the Debian root $name" "Its last lines are above. Is there a network?"
    fi
    printf '%s\n' "$made_from" >"$folder.done"
}
