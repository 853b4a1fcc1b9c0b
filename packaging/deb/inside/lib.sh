# shellcheck shell=bash
# For the scripts of this folder, which run in a Debian root.

fail() {
    printf 'test-deb: %s\n' "$*" >&2
    exit 1
}

apt() { apt-get -qq -y --no-install-recommends -o Dpkg::Use-Pty=0 "$@" >/dev/null; }

# Lists the files of the system, without what apt and dpkg keep about any package.
list_files() {
    find / -xdev \( -path /proc -o -path /sys -o -path /dev -o -path /run -o -path /tmp -o -path /srv -o -path /root \
        -o -path /var/cache -o -path /var/log -o -path /var/lib/apt -o -path /var/lib/dpkg/info \) -prune \
        -o -printf '%y %p %l\n' | grep -v -E ' /var/lib/dpkg/[^/]*(-old|lock[^/]*)? $|/var/lib/systemd/catalog' | sort
}

# No file, unit or entry of dpkg may have this name any more.
no_traces() {
    local left
    left=$(find / -xdev \( -path /proc -o -path /sys -o -path /srv \) -prune -o -iname '*hikkoshi*' \
        ! -path '/var/cache/*' ! -path '/root/*' -print)
    [[ -z $left ]] || fail "purge leaves: $left"
    [[ ! -e /run/hikkoshi ]] || fail "purge leaves /run/hikkoshi"
    ! dpkg-query -s hikkoshi >/dev/null 2>&1 || fail "dpkg still knows the package"
}
