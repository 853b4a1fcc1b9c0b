#!/usr/bin/env bash
# A host with libvirt of its own, for tests: `unshare --mount --pid --net --fork --kill-child
# --mount-proc host.sh BUILD FOLDER COMMAND…` starts the daemons, runs COMMAND there, and ends with it.
#
# This host's file system is seen, and build/libvirt in it as if it were installed. What is written
# outside of BUILD and FOLDER is lost at the end. /run and /etc are the host's own.
#
# With HOST_LIBVIRT=VERSION (11.3, 12.9), the file system of build/debian-roots/libvirt-VERSION is seen
# instead, with its QEMU, and the project's folder.
#
# With HOST_NAME (and `unshare --uts`), the host is one of several in FOLDER: it has that name, and its
# daemon listens on TCP without authentication. FOLDER/HOST_NAME is /srv/host there. With
# HOST_USERFAULTFD=1, QEMU may open userfaultfds, which its own post-copy needs; by default libvirt
# does not allow it.
set -euo pipefail
build=$1 folder=$2
shift 2

mount --make-rprivate /
name=${HOST_NAME:-}
layers=$folder/libvirt-${name:-host}
mkdir -p "$layers"
mount -t tmpfs tmpfs "$layers"
root=$layers/root
mkdir -p "$layers"/{upper,work} "$root"
version=${HOST_LIBVIRT:-}
if [[ $version && $version != 9.0 ]]; then
    lower=$build/debian-roots/libvirt-$version
    # This host's path is that of the file in the root, whose libraries are found there.
    qemu=$lower/usr/bin/qemu-system-x86_64
    seen=("$(dirname "$build")" "$build" "$folder")
    mkdir -p "$layers/upper/usr/bin"
    unset LD_LIBRARY_PATH # this host's libvirt
else
    lower=/
    qemu=$build/qemu-10.0/run
    seen=("$build" "$folder")
    cp -a "$build/libvirt/root/." "$layers/upper"
fi
# A script, as people use: the domain's process executes other programs before it is QEMU.
cat >"$layers/upper/usr/bin/qemu-system-x86_64" <<QEMU
#!/bin/sh
n=\${TIMES:-0}
if [ \$n -lt 20 ]; then
    TIMES=\$((n + 1)) exec "\$0" "\$@"
fi
exec "$qemu" "\$@"
QEMU
chmod +x "$layers/upper/usr/bin/qemu-system-x86_64"
# It serves the disks of a domain while they are copied: that of the root, or of QEMU 7.2.
daemon=$build/qemu-7.2/root
[[ $lower != / ]] || cat >"$layers/upper/usr/bin/qemu-storage-daemon" <<DAEMON
#!/bin/sh
LD_LIBRARY_PATH=$daemon/usr/lib/x86_64-linux-gnu:$daemon/lib/x86_64-linux-gnu exec "$daemon/usr/bin/qemu-storage-daemon" "\$@"
DAEMON
[[ $lower != / ]] || chmod +x "$layers/upper/usr/bin/qemu-storage-daemon"
# libvirtd runs it when it starts. Without it, libvirt 9.0 can hang then: its child reports the error
# between fork and exec, and waits for a lock of the C library that another thread had.
if [[ $lower != / || ! -x $(type -P dmidecode) ]]; then
    mkdir -p "$layers/upper/usr/sbin"
    printf '#!/bin/sh\nexit 1\n' >"$layers/upper/usr/sbin/dmidecode"
    chmod +x "$layers/upper/usr/sbin/dmidecode"
fi
# Emulators of TPMs. The set-up makes certificates, which no test needs; an emulator ends with its
# QEMU, without being asked to.
if [[ -x $build/swtpm/run ]]; then
    printf '#!/bin/sh\nexec "%s" "$@"\n' "$build/swtpm/run" >"$layers/upper/usr/bin/swtpm"
    cat >"$layers/upper/usr/bin/swtpm_setup" <<'SETUP'
#!/bin/sh
[ "$1" != --print-capabilities ] || echo '{ "type": "swtpm_setup", "features": [ "tpm-2.0" ] }'
SETUP
    printf '#!/bin/sh\n' >"$layers/upper/usr/bin/swtpm_ioctl"
    chmod +x "$layers"/upper/usr/bin/swtpm*
fi
mount -t overlay overlay -o "lowerdir=$lower,upperdir=$layers/upper,workdir=$layers/work" "$root"
mount -t proc proc "$root/proc"
mount -t sysfs sysfs "$root/sys"
mount -t tmpfs tmpfs "$root/dev"
mkdir "$root"/dev/{net,pts,shm}
cp -a /dev/{null,zero,full,random,urandom,tty} "$root/dev"
[[ ! -e /dev/userfaultfd ]] || cp -a /dev/userfaultfd "$root/dev"
cp -a /dev/net/tun "$root/dev/net"
ln -s pts/ptmx "$root/dev/ptmx"
ln -s /proc/self/fd "$root/dev/fd"
ln -s fd/0 "$root/dev/stdin"
# QEMU must be able to use KVM if the daemon is, or what the daemon has found out about QEMU is never
# valid for long.
[[ ! -e /dev/kvm ]] || { cp -a /dev/kvm "$root/dev" && chmod 0666 "$root/dev/kvm"; }
mount -t devpts devpts "$root/dev/pts" -o newinstance,ptmxmode=0666,mode=620
mount -t tmpfs tmpfs "$root/run"
for kept in "${seen[@]}"; do
    mkdir -p "$root$kept"
    mount --bind "$kept" "$root$kept"
done
# QEMU's user reaches them, whoever may enter the folders above.
for kept in "${seen[@]}"; do
    above=$kept
    while above=$(dirname "$above") && [[ $above != / ]]; do
        chmod a+x "$root$above"
    done
done
if [[ $name ]]; then
    hostname "$name"
    mkdir -p "$folder/$name" "$root/srv/host" "$root/etc/libvirt"
    mount --bind "$folder/$name" "$root/srv/host"
    # The daemons of two hosts tell from these numbers that they are not one.
    cat >"$root/etc/libvirt/libvirtd.conf" <<CONF
host_uuid = "$(</proc/sys/kernel/random/uuid)"
listen_tls = 0
listen_tcp = 1
auth_tcp = "none"
CONF
    if [[ ${HOST_USERFAULTFD:-} ]]; then
        chmod 0666 "$root/dev/userfaultfd"
        cat >"$root/etc/libvirt/qemu.conf" <<CONF
cgroup_device_acl = [
    "/dev/null", "/dev/full", "/dev/zero", "/dev/random", "/dev/urandom", "/dev/ptmx", "/dev/kvm",
    "/dev/userfaultfd"
]
CONF
    fi
fi
ip link set lo up

# Not chroot: the daemon enters namespaces, whose root would be this host's.
mkdir "$root/old"
cd "$root"
pivot_root . old
# shellcheck disable=SC2016 # expanded there
exec bash -euo pipefail -c '
    umount --lazy /old
    rmdir /old
    # What the package'"'"'s installation does.
    if ! grep -q ^libvirt-qemu: /etc/passwd; then
        printf "%s\n" kvm:x:64054: libvirt-qemu:x:64055: >>/etc/group
        echo "libvirt-qemu:x:64055:64055::/var/lib/libvirt:/usr/sbin/nologin" >>/etc/passwd
    fi
    ldconfig
    mkdir -p /run/lock /var/lib/libvirt/qemu /var/log/libvirt /var/cache/libvirt
    virtlogd --daemon
    libvirtd --daemon ${HOST_NAME:+--listen}
    # The first process of a PID namespace has to wait for orphans, as a shell does: the daemon waits
    # until these are gone. A last command without this exit would replace the shell.
    status=0
    "$@" || status=$?
    exit "$status"
' host "$@"
