#!/usr/bin/env bash
# In a fresh Debian root, with a network: installs, checks, upgrades and purges the package. At the
# end what the other scripts need is installed, and the package is not.
set -euo pipefail
here=$(dirname "${BASH_SOURCE[0]}")
# shellcheck source=lib.sh
source "$here/lib.sh"
apt() { apt-get -qq -y --no-install-recommends -o Dpkg::Use-Pty=0 "$@" >/dev/null; }

apt update
# apt installs what the package depends on.
cp /srv/shared/hikkoshi_*.deb /root
cd /root
new=$(echo ./hikkoshi_*.deb)
apt install "$new"
hikkoshi --version
depends=$(dpkg-query -W -f '${Depends}' hikkoshi)
for needed in libvirt0 libc6; do
    grep -E "(^|, )$needed \(>= [0-9]" <<<"$depends" >/dev/null ||
        fail "the package does not depend on a version of $needed: $depends"
done
[[ $(ldd /usr/bin/hikkoshi) == *"libvirt.so.0 => /"* ]] || fail "the program does not use libvirt"
# There is no daemon here; that is libvirt's answer, not the program's.
answer=$(hikkoshi check --domain none 2>&1) && fail "found a domain"
[[ $answer == *"libvirt-sock"* ]] || fail "check --domain says: $answer"
apt purge hikkoshi
no_traces

# The tests' own programs, and then the package of an earlier version, with a file that the new
# version does not have.
apt install man-db bash-completion zsh fish systemd systemd-sysv qemu-system-x86 qemu-utils openssh-server \
    openssl adduser iproute2 procps nftables
apt clean
list_files >/tmp/before
dpkg-deb --raw-extract "$new" /tmp/older
sed -i 's/^Version: .*/Version: 0.0.1-1/' /tmp/older/DEBIAN/control
echo old >/tmp/older/usr/share/doc/hikkoshi/docs/old.md
rm /tmp/older/usr/share/man/man1/hikkoshi-report.1.gz
dpkg-deb -Znone --build --root-owner-group /tmp/older /tmp/older.deb >/dev/null
apt install /tmp/older.deb
rm -r /tmp/older /tmp/older.deb
echo 'RECEIVE_OPTIONS=--listen 10.0.0.2:7000 --qmp /run/guest.qmp' >/etc/hikkoshi/receive/kept.conf
apt install "$new"
[[ ! -e /usr/share/doc/hikkoshi/docs/old.md && -e /usr/share/man/man1/hikkoshi-report.1.gz ]] ||
    fail "the upgrade has not replaced the files"
[[ -e /etc/hikkoshi/receive/kept.conf ]] || fail "the upgrade has removed a configuration"
bash "$here/installed.sh"
# As an administrator enables it, and what the daemon leaves when no guest is received.
systemctl --quiet enable hikkoshi-receive.socket hikkoshi-receive.service hikkoshi-dashboard.service
mkdir -p /run/hikkoshi/{control,status,receivers,machines}
touch /run/hikkoshi/receivers/web.json /run/hikkoshi/machines/web.log
apt remove hikkoshi
[[ ! $(find /etc/systemd -name '*hikkoshi*') ]] || fail "remove leaves enabled units"
[[ -e /etc/hikkoshi/receive/kept.conf && ! -e /usr/bin/hikkoshi ]] ||
    fail "remove must keep the configuration, and nothing else"
apt purge hikkoshi
no_traces
list_files >/tmp/after
diff /tmp/before /tmp/after || fail "purge leaves, or has removed, the files above"
rm /tmp/before /tmp/after
echo "installed, upgraded, removed and purged: no traces"
