#!/usr/bin/env bash
# A node of a cluster, for tests: `unshare --uts --mount --pid --fork --kill-child --mount-proc
# node.sh BUILD FOLDER NAME ADDRESS`, in a network namespace of its own, starts Corosync, Pacemaker
# and hikkoshi's daemon there, writes `ready`, and ends with its standard input. Killed, it is a
# node without power.
#
# FOLDER/local is storage of the node's own. This host's file system is seen, with build/pacemaker
# and build/libvirt in it as if they were installed. BUILD and FOLDER are what all nodes share. What
# belongs to the node and outlives it is in FOLDER/NAME; everything else that is written is lost
# with it, as /run is.
set -euo pipefail
build=$1 folder=$2 name=$3 address=$4
own=$folder/$name

mount --make-rprivate /
hostname "$name"
mkdir -p "$own"/{layers,corosync,pacemaker/cib,pacemaker/pengine,pacemaker/blackbox,pacemaker/cores,log/pacemaker,log/corosync,log/crmsh}
mount -t tmpfs tmpfs "$own/layers"
mkdir "$own"/layers/{root,upper,work}
root=$own/layers/root
cp -a "$build"/{libvirt,pacemaker}/root/. "$own/layers/upper"
mount -t overlay overlay -o "lowerdir=/,upperdir=$own/layers/upper,workdir=$own/layers/work" "$root"
mount -t proc proc "$root/proc"
# A node that panics must not take this host with it.
[[ ! -e $root/proc/sysrq-trigger ]] || mount --bind /dev/null "$root/proc/sysrq-trigger"
mount -t sysfs sysfs "$root/sys"
mount -t tmpfs tmpfs "$root/dev"
mkdir "$root"/dev/{net,pts,shm}
cp -a /dev/{null,zero,full,random,urandom,tty} "$root/dev"
[[ ! -e /dev/userfaultfd ]] || cp -a /dev/userfaultfd "$root/dev"
ln -s pts/ptmx "$root/dev/ptmx"
ln -s /proc/self/fd "$root/dev/fd"
mount -t devpts devpts "$root/dev/pts" -o newinstance,ptmxmode=0666,mode=620
mount -t tmpfs tmpfs "$root/dev/shm"
mount -t tmpfs tmpfs "$root/run"
for shared in "$build" "$folder"; do
    mkdir -p "$root$shared"
    mount --bind "$shared" "$root$shared"
done
mount --bind "$own/local" "$root$folder/local"
# What the installation of the packages does.
printf '%s\n' haclient:x:189: kvm:x:64054: libvirt-qemu:x:64055: >>"$root/etc/group"
printf '%s\n' hacluster:x:189:189::/var/lib/pacemaker:/usr/sbin/nologin \
    libvirt-qemu:x:64055:64055::/var/lib/libvirt:/usr/sbin/nologin >>"$root/etc/passwd"
mkdir -p "$root"/etc/{corosync,hikkoshi} "$root"/var/{log,lib/{corosync,pacemaker}} "$root"/run/{crm,hikkoshi}
mount --bind "$own/etc/corosync" "$root/etc/corosync"
mount --bind "$own/etc/hikkoshi" "$root/etc/hikkoshi"
mount --bind "$own/corosync" "$root/var/lib/corosync"
mount --bind "$own/pacemaker" "$root/var/lib/pacemaker"
mount --bind "$own/log" "$root/var/log"
chown -R 189:189 "$root"/var/lib/pacemaker "$root"/var/log/pacemaker "$root/run/crm"
chmod 750 "$root"/var/lib/pacemaker/* "$root/run/crm"
chmod 700 "$root/run/hikkoshi"
ln -s "$own/hikkoshi" "$root/usr/bin/hikkoshi"
install -D -m 755 "$folder/guest" "$root/usr/lib/ocf/resource.d/hikkoshi/guest"
install -m 755 "$folder/fence_lab" "$root/usr/sbin/fence_lab"
ln -s "$folder/power" "$root/run/power"
echo "$name" >"$root/run/node"

# Not chroot: libvirtd enters namespaces, whose root would be this host's.
mkdir "$root/old"
cd "$root"
pivot_root . old
umount --lazy /old
rmdir /old
# The libraries of this host's libvirt are installed here.
unset LD_LIBRARY_PATH
ldconfig
export PCMK_logfile=/var/log/pacemaker/pacemaker.log PCMK_logfacility=none

corosync -f &>>/var/log/corosync/stderr &
until corosync-cfgtool -s &>/dev/null; do
    kill -0 $! || { cat /var/log/corosync/stderr >&2; exit 1; }
    sleep 0.1
done
pacemakerd &>>/var/log/pacemaker/stderr &
# As its unit of systemd does (Restart=always).
while :; do
    # shellcheck disable=SC2046 # words
    hikkoshi daemon --listen "$address:7000" $(sed -n 's/^#.*//; s/\\$//; s/^DAEMON_OPTIONS=//; p' /etc/hikkoshi/daemon.conf) &>>/var/log/hikkoshi || true
    sleep 0.2
done &
echo ready
# As the first process of its PID namespace, this shell waits for orphans meanwhile.
while read -r _; do :; done
