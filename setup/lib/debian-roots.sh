# Debian roots, made by mmdebstrap from the same sources as everything else: for the package, and
# hosts with a newer libvirt. They are never written to (packaging/deb/in-root.sh,
# guest/lab/libvirt/host.sh).

# Suites of a root beside the usual ones of the release.
more_suites=()

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

readonly libvirt_root_packages=iproute2,libvirt-clients,libvirt-daemon,libvirt-daemon-driver-qemu,qemu-system-x86,qemu-utils

# A root of a host with libvirt $1 from suite $2, and the QEMU of that suite with its storage daemon
# (qemu-utils). Programs of another release need its C library, and libvirt finds its files by
# absolute paths.
setup_libvirt_root() {
    local version=$1 suite=$2 root=$build/debian-roots/libvirt-$1 found
    local options=(
        --variant=minbase
        --include="$libvirt_root_packages"
        --dpkgopt=path-exclude='/usr/share/doc/*' --dpkgopt=path-exclude='/usr/share/man/*'
        --dpkgopt=path-exclude='/usr/share/locale/*' --dpkgopt=path-exclude='/usr/share/icons/*'
    )
    local more_suites=() pin=$build/debian-roots/libvirt-$1.pref
    if [[ $suite != "$release" ]]; then
        # Everything else is the release's own.
        more_suites=("$suite")
        mkdir -p "$build/debian-roots"
        printf '%s\n' 'Package: src:libvirt src:qemu src:seabios src:ipxe' \
            "Pin: release n=$suite" 'Pin-Priority: 990' >"$pin"
        options+=("--setup-hook=copy-in $pin /etc/apt/preferences.d")
    fi
    setup_root "libvirt-$version" "${options[@]}"
    found=$(chroot "$root" libvirtd --version) || true
    [[ $found == *" $version."* ]] || fail "$suite has $found, not $version" \
        "This release of hikkoshi is tested with $version."
}

# $1: the folder's name; the other arguments are passed to mmdebstrap.
setup_root() {
    local folder=$build/debian-roots/$1 name=$1
    shift
    # Made again when the options have changed.
    local made_from="$release $*"
    [[ ! -e $folder.done || $(<"$folder.done") != "$made_from" ]] || return 0
    [[ $(id -u) == 0 ]] || fail "making a Debian root needs root" "Run \`setup/setup.sh $name-root\` as root."
    command -v mmdebstrap >/dev/null || install_tools mmdebstrap
    prepare_private_apt
    say "a Debian root: $name"
    rm -rf "$folder" "$folder.done"
    mkdir -p "$build/debian-roots"
    local sources=() suite
    for suite in "$release" "$release-updates" "$release-security" "${more_suites[@]}"; do
        sources+=("$private_apt/sources/$suite".*)
    done
    local log=$folder.log
    if ! mmdebstrap --quiet --mode=root "$@" "$release" "$folder" "${sources[@]}" >"$log" 2>&1; then
        tail -n 20 "$log" >&2
        fail "mmdebstrap could not make the Debian root $name" "Its last lines are above. Is there a network?"
    fi
    printf '%s\n' "$made_from" >"$folder.done"
}
