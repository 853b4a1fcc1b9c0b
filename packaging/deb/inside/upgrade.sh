#!/usr/bin/env bash
# In the root of a host, under systemd, without a network: upgrades from the package of another
# revision, checks what is installed, and removes and purges it. The package stays as long as a
# migration needs it.
# shellcheck disable=SC2016 # Parts of other scripts are in single quotes.
set -euo pipefail
here=$(dirname "${BASH_SOURCE[0]}")
# shellcheck source=lib.sh
source "$here/lib.sh"

cp /srv/shared/hikkoshi_*.deb /root
cd /root
new=$(echo ./hikkoshi_*.deb)
list_files >/tmp/before

# The package of an earlier revision (its version as packaging/deb/build.sh makes it), with a file
# that the new one does not have, and with another unit; and one of a later version, which does not
# read the journals of this one.
other=/tmp/other
dpkg-deb --raw-extract "$new" $other
build() { dpkg-deb -Znone --build --root-owner-group $other "$1" >/dev/null; }
version() { sed -i "s/^Version: .*/Version: $1/" $other/DEBIAN/control; }
version 0.1.0~git20200101000000.0123456789-1
echo old >$other/usr/share/doc/hikkoshi/docs/old.md
rm $other/usr/share/man/man1/hikkoshi-report.1.gz
socket=$other/lib/systemd/system/hikkoshi-daemon.socket
sed -i 's/^Description=.*/Description=old/' $socket
touch --date=2020-01-01 $socket
build /tmp/older.deb
version 1000
written=$(<$other/usr/share/hikkoshi/journal-version)
readable=$(sed -n 's/^READABLE="\(.*\)"$/\1/p' $other/DEBIAN/preinst)
[[ " $readable " == *" $written "* ]] || fail "preinst knows of versions '$readable', and '$written' is written"
sed -i 's/^READABLE=.*/READABLE="999 1000"/' $other/DEBIAN/preinst
build /tmp/later.deb
later_preinst() { bash $other/DEBIAN/preinst upgrade 0 1000; }

apt install /tmp/older.deb
systemctl start hikkoshi-daemon.socket
description() { systemctl show --value --property=Description hikkoshi-daemon.socket; }
[[ $(description) == old ]] || fail "the earlier unit is not loaded: $(description)"
settings=(/etc/hikkoshi/receive/kept.conf /etc/hikkoshi/daemon.conf)
echo 'RECEIVE_OPTIONS=--listen 10.0.0.2:7000 --qmp /run/guest.qmp' >"${settings[0]}"
echo 'DAEMON_OPTIONS=--advertise 10.0.0.2:7000' >"${settings[1]}"

# The new package reads what the earlier one writes: it can be installed during a migration.
journal=/run/hikkoshi/destination-1-1.json
lock=/run/hikkoshi/destination-1-1.lock
exec 9>$lock
flock 9
printf '{"version":%s,' "$written" >$journal
apt install "$new" 9>&-
[[ ! -e /usr/share/doc/hikkoshi/docs/old.md && -e /usr/share/man/man1/hikkoshi-report.1.gz ]] ||
    fail "the upgrade has not replaced the files"
[[ -e ${settings[0]} && -e ${settings[1]} ]] || fail "the upgrade has removed a configuration"
systemctl --quiet is-active hikkoshi-daemon.socket || fail "the upgrade has ended a unit"
[[ $(systemctl show --value --property=NeedDaemonReload hikkoshi-daemon.socket) == no && $(description) != old ]] ||
    fail "after the upgrade, systemd has the unit '$(description)'"
systemctl stop hikkoshi-daemon.socket

# refuses COMMAND PACKAGE SAID: apt fails because of what hikkoshi's script says, and nothing changes.
refuses() {
    local output
    ! output=$(apt "$1" "$2" 2>&1 </dev/null 9>&-) || fail "apt $1 $2 must not succeed: it should say '$3'"
    [[ $output == *"$3"* ]] || fail "apt $1 $2 does not say '$3': $output"
    [[ $(dpkg-query -W -f '${Status} ${Version}' hikkoshi) == "install ok installed "[^1]* ||
        $(dpkg-query -W -f '${Status}' hikkoshi) == "deinstall ok installed" ]] ||
        fail "after apt $1 $2: $(dpkg-query -W -f '${Status} ${Version}' hikkoshi)"
    hikkoshi --version >/dev/null || fail "apt $1 $2 has removed the program"
}
refuses install /tmp/later.deb "$journal belongs to a migration that is not finished"
for command in remove purge; do
    refuses $command hikkoshi "$journal belongs to a migration that is not finished"
done
rm $journal
# In pre-copy the destination has no journal, but a lock. After an upgrade this engine would write a
# journal of the installed version.
refuses install /tmp/later.deb "holds $lock"
for command in remove purge; do refuses $command hikkoshi "holds $lock"; done
echo 1000 >/usr/share/hikkoshi/journal-version
later_preinst 9>&- || fail "the new program reads what is written, and the package is not upgraded"
echo "$written" >/usr/share/hikkoshi/journal-version
exec 9>&-

# served PATH: a process in a network namespace of its own has this socket.
served() {
    unshare --net perl -MIO::Socket::UNIX -e '$socket = IO::Socket::UNIX->new(Local => $ARGV[0], Listen => 1) or die; sleep' "$1" &
    server=$!
    until [[ -S $1 ]]; do sleep 0.1; done
}
end_server() {
    kill $server
    wait $server 2>/dev/null || true
}
# The daemon starts engines of the program that it was started with.
served /run/hikkoshi/daemon.sock
refuses install /tmp/later.deb '`hikkoshi daemon` runs'
end_server
later_preinst || fail "the package is not upgraded, and nothing of the installed version runs"

bash "$here/installed.sh"
# As an administrator enables it, and what the daemon leaves when no guest is received.
systemctl --quiet enable hikkoshi-daemon.socket hikkoshi-daemon.service hikkoshi-dashboard.service
systemctl start hikkoshi-daemon.socket
mkdir -p /run/hikkoshi/{control,status,receivers,machines}
touch /run/hikkoshi/receivers/web.json /run/hikkoshi/machines/web.log
# What is left of a receiver and of its QEMU that were killed.
touch /run/hikkoshi/machines/web.{waiting,lock,qmp} /run/hikkoshi/receivers/web.sock
ln -s web.sock /run/hikkoshi/receivers/key-0123
# A QEMU that runs.
touch /run/hikkoshi/machines/runs.log
served /run/hikkoshi/machines/runs.qmp
apt remove hikkoshi
[[ ! $(find /etc/systemd -name '*hikkoshi*') ]] || fail "remove leaves enabled units"
! systemctl --quiet is-active hikkoshi-daemon.socket || fail "remove leaves a unit active"
[[ -e ${settings[0]} && -e ${settings[1]} && ! -e /usr/bin/hikkoshi ]] ||
    fail "remove must keep the configuration, and nothing else"
apt purge hikkoshi
left=$(find /run/hikkoshi ! -type d 2>/dev/null | sort | tr '\n' ' ') || true
[[ $left == '/run/hikkoshi/machines/runs.log /run/hikkoshi/machines/runs.qmp ' ]] ||
    fail "purge must keep what a QEMU that runs needs, and nothing else: $left"
end_server
# Only this is left: the administrator's files, and what was kept for that QEMU.
rm "${settings[@]}"
rmdir /etc/hikkoshi/receive /etc/hikkoshi
rm -r /run/hikkoshi
rm -r $other /tmp/older.deb /tmp/later.deb
no_traces
list_files >/tmp/after
diff /tmp/before /tmp/after || fail "purge leaves, or has removed, the files above"
echo "upgraded, kept for an unfinished migration, removed and purged: no traces"
