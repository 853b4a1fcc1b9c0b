#!/usr/bin/env bash
# Runs a command in a Debian root: `unshare --mount --uts --ipc --pid --fork --kill-child in-root.sh
# ROOT SHARED COMMAND…`.
#
# What is written goes to a layer in memory, or with UPPER=FOLDER to FOLDER/upper, so that the root
# stays as it is. ROOT may be several folders, as overlayfs takes them. SHARED is a folder of the
# host, and /srv/shared in the root. With OWN_CGROUP=NAME the command also has a control group of its
# own, as systemd needs it; the caller removes it.
set -euo pipefail
root=$1 shared=$2
shift 2

if [[ ! ${IN_CGROUP:-} ]]; then
    mount --make-rprivate /
    if [[ ${OWN_CGROUP:-} ]]; then
        groups=$(mktemp -d)
        mount -t cgroup2 cgroup2 "$groups"
        mkdir "$groups/$OWN_CGROUP"
        # This process, in whatever namespace of processes it is.
        echo 0 >"$groups/$OWN_CGROUP/cgroup.procs"
        umount "$groups"
        rmdir "$groups"
        IN_CGROUP=1 exec unshare --cgroup "$0" "$root" "$shared" "$@"
    fi
fi

layers=${UPPER:-}
if [[ ! $layers ]]; then
    layers=$(mktemp -d)
    mount -t tmpfs -o mode=755 tmpfs "$layers"
fi
there=$layers/root
mkdir "$layers"/{upper,work,root}
mount -t overlay overlay -o "lowerdir=$root,upperdir=$layers/upper,workdir=$layers/work" "$there"
mount -t proc proc "$there/proc"
mount -t sysfs sysfs "$there/sys"
[[ ! ${OWN_CGROUP:-} ]] || mount -t cgroup2 cgroup2 "$there/sys/fs/cgroup"
mount -t tmpfs -o mode=755 tmpfs "$there/run"
mount -t tmpfs -o mode=755 tmpfs "$there/dev"
mkdir "$there"/dev/{net,pts,shm}
mount -t tmpfs tmpfs "$there/dev/shm"
mount -t devpts devpts "$there/dev/pts" -o newinstance,ptmxmode=0666,mode=620
for node in null zero full random urandom tty net/tun userfaultfd kvm; do
    [[ ! -e /dev/$node ]] || cp -a "/dev/$node" "$there/dev/$node"
done
ln -s pts/ptmx "$there/dev/ptmx"
ln -s /proc/self/fd "$there/dev/fd"
ln -s fd/0 "$there/dev/stdin"
ln -s fd/1 "$there/dev/stdout"
ln -s fd/2 "$there/dev/stderr"
mkdir -p "$there/srv/shared"
mount --bind "$shared" "$there/srv/shared"
cat /etc/resolv.conf >"$there/etc/resolv.conf"
# Not only another root folder: paths in /proc are those of a host then, also between the namespaces
# that systemd makes for units.
cd "$there"
pivot_root . .
umount --lazy .
exec chroot . /usr/bin/env -i HOME=/root LANG=C.UTF-8 DEBIAN_FRONTEND=noninteractive \
    PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    ${OWN_CGROUP:+container=hikkoshi-test} "$@"
