# The host: is it supported, and are the small tools installed?

# Sets `codename`, and refuses a host that the packages below do not support.
check_machine() {
    if ! command -v dpkg >/dev/null || ! command -v apt-get >/dev/null || [[ ! -r /etc/os-release ]]; then
        fail "this machine does not run Debian: dpkg, apt-get or /etc/os-release is missing" \
            "The two QEMU versions and the kernel come from Debian 12's packages."
    fi
    local id
    # shellcheck source=/dev/null
    id=$(. /etc/os-release && printf '%s' "${ID:-unknown}")
    # shellcheck source=/dev/null
    codename=$(. /etc/os-release && printf '%s' "${VERSION_CODENAME:-unknown}")
    [[ $id == debian && $codename == bookworm ]] || fail \
        "this is $id $codename; only Debian 12 (bookworm) carries both QEMU 7.2 and QEMU 10.0" \
        "Use a Debian 12 machine, virtual machine or container."
    local architecture
    architecture=$(dpkg --print-architecture)
    [[ $architecture == amd64 ]] || fail \
        "this machine is $architecture; the test guest is x86-64 and the injected system call too" \
        "Use an amd64 machine."
    readonly codename
}

# The packages whose command or file is missing, one per line.
missing_tools() {
    # A file of the package, and the package.
    local probe
    for probe in \
        /usr/bin/gcc:gcc \
        /usr/bin/g++:g++ \
        /usr/lib/x86_64-linux-gnu/libc.a:libc6-dev \
        /usr/bin/make:make \
        /usr/bin/pkg-config:pkg-config \
        /usr/bin/cpio:cpio \
        /usr/bin/lz4:lz4 \
        /usr/bin/flock:util-linux \
        /usr/bin/unshare:util-linux \
        /usr/sbin/mkfs.ext4:e2fsprogs \
        /usr/sbin/ip:iproute2 \
        /usr/sbin/tc:iproute2 \
        /usr/bin/ss:iproute2 \
        /usr/bin/pgrep:procps; do
        # A tool may also have been installed elsewhere on the path by hand.
        local file=${probe%%:*}
        [[ -e $file || -e /${file#/usr/} ]] || command -v "$(basename "$file")" >/dev/null || echo "${probe##*:}"
    done | sort -u
}

install_missing_tools() {
    local missing
    missing=$(missing_tools | tr '\n' ' ')
    missing=${missing% }
    [[ -z $missing ]] || install_tools "$missing"
}

# Installs packages in the system; $1: their names, separated by blanks.
install_tools() {
    local missing=$1 as_root=()
    if [[ $(id -u) != 0 ]]; then
        command -v sudo >/dev/null || fail \
            "missing on this machine: $missing; installing them needs root, and there is no sudo" \
            "As root: apt-get update && apt-get install $missing"
        as_root=(sudo)
    fi
    say "installing $missing"
    export DEBIAN_FRONTEND=noninteractive
    local log
    log=$(mktemp)
    # Package names contain no blanks: they are split on purpose.
    # shellcheck disable=SC2086
    if ! { "${as_root[@]}" apt-get update && "${as_root[@]}" apt-get install -y --no-install-recommends $missing; } >"$log" 2>&1; then
        tail -n 20 "$log" >&2
        rm -f "$log"
        fail "apt-get could not install: $missing" "Its last lines are above. Is there a network?"
    fi
    rm -f "$log"
}
