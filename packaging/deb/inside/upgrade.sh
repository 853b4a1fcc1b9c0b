#!/usr/bin/env bash
# In the root of a host, without a network: upgrades from an earlier version, checks what is
# installed, and removes and purges it. The package stays as long as a migration needs it.
# shellcheck disable=SC2016 # Parts of other scripts are in single quotes.
set -euo pipefail
here=$(dirname "${BASH_SOURCE[0]}")
# shellcheck source=lib.sh
source "$here/lib.sh"

cp /srv/shared/hikkoshi_*.deb /root
cd /root
new=$(echo ./hikkoshi_*.deb)
list_files >/tmp/before

# A package of an earlier version, with a file that the new version does not have, and one of a later
# version, which reads journals of its own version only.
dpkg-deb --raw-extract "$new" /tmp/other
sed -i 's/^Version: .*/Version: 0.0.1-1/' /tmp/other/DEBIAN/control
echo old >/tmp/other/usr/share/doc/hikkoshi/docs/old.md
rm /tmp/other/usr/share/man/man1/hikkoshi-report.1.gz
build() { dpkg-deb -Znone --build --root-owner-group /tmp/other "$1" >/dev/null; }
build /tmp/older.deb
sed -i 's/^Version: .*/Version: 1000/' /tmp/other/DEBIAN/control
grep -E '"\$version" != "[0-9]+"' /tmp/other/DEBIAN/preinst >/dev/null || fail "preinst knows no version of journals"
sed -i -E 's/("\$version" != )"[0-9]+"/\1"1000"/' /tmp/other/DEBIAN/preinst
build /tmp/later.deb
rm -r /tmp/other

apt install /tmp/older.deb
echo 'RECEIVE_OPTIONS=--listen 10.0.0.2:7000 --qmp /run/guest.qmp' >/etc/hikkoshi/receive/kept.conf
# A journal of this version, as the program begins it.
mkdir -p /run/hikkoshi
journal=/run/hikkoshi/destination-1-1.json
printf '{"version":%s,' "$(sed -nE 's/.*"\$version" != "([0-9]+)".*/\1/p' /var/lib/dpkg/info/hikkoshi.preinst)" >"$journal"
apt install "$new"
[[ ! -e /usr/share/doc/hikkoshi/docs/old.md && -e /usr/share/man/man1/hikkoshi-report.1.gz ]] ||
    fail "the upgrade has not replaced the files"
[[ -e /etc/hikkoshi/receive/kept.conf ]] || fail "the upgrade has removed a configuration"
refuses() {
    local output
    ! output=$(apt "$@" 2>&1 </dev/null) || fail "apt $1 must not succeed while $journal is there"
    [[ $output == *"$journal belongs to a migration that is not finished"* ]] || fail "apt $1 says: $output"
    [[ $(dpkg-query -W -f '${Status} ${Version}' hikkoshi) == "install ok installed "[^1]* ||
        $(dpkg-query -W -f '${Status}' hikkoshi) == "deinstall ok installed" ]] ||
        fail "after apt $1: $(dpkg-query -W -f '${Status} ${Version}' hikkoshi)"
    hikkoshi --version >/dev/null || fail "apt $1 has removed the program"
}
refuses install /tmp/later.deb
refuses remove hikkoshi
refuses purge hikkoshi
rm "$journal"
# In pre-copy the destination has no journal, but a lock.
lock=/run/hikkoshi/destination-1-1.lock
exec 9>"$lock"
flock 9
for command in remove purge; do
    ! output=$(apt $command hikkoshi 2>&1 </dev/null 9>&-) || fail "apt $command must not succeed while $lock is held"
    [[ $output == *"holds $lock"* ]] || fail "apt $command says: $output"
    hikkoshi --version >/dev/null || fail "apt $command has removed the program"
done
exec 9>&-
apt install "$new"

bash "$here/installed.sh"
# As an administrator enables it, and what the daemon leaves when no guest is received.
systemctl --quiet enable hikkoshi-receive.socket hikkoshi-receive.service hikkoshi-dashboard.service
mkdir -p /run/hikkoshi/{control,status,receivers,machines}
touch /run/hikkoshi/receivers/web.json /run/hikkoshi/machines/web.log
# What is left of a receiver and of its QEMU that were killed.
touch /run/hikkoshi/machines/web.{waiting,lock,qmp} /run/hikkoshi/receivers/web.sock
ln -s web.sock /run/hikkoshi/receivers/key-0123
apt remove hikkoshi
[[ ! $(find /etc/systemd -name '*hikkoshi*') ]] || fail "remove leaves enabled units"
[[ -e /etc/hikkoshi/receive/kept.conf && ! -e /usr/bin/hikkoshi ]] ||
    fail "remove must keep the configuration, and nothing else"
apt purge hikkoshi
no_traces
rm /tmp/older.deb /tmp/later.deb
list_files >/tmp/after
diff /tmp/before /tmp/after || fail "purge leaves, or has removed, the files above"
echo "upgraded, kept for an unfinished migration, removed and purged: no traces"
