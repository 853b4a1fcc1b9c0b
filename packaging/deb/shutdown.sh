#!/usr/bin/env bash
# Shuts hosts down that have a guest in post-copy: `shutdown.sh WORK ROOT`, as root. Three hosts are
# set up as docs/operating.md says. The guest must not be lost, whichever of its hosts is shut down.
#
# Nothing here depends on how fast a host, a guest or a command is.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
# shellcheck source=hosts.sh
source packaging/deb/hosts.sh shutdown "$1" "$2"

start_hosts source destination third
for one in source destination third; do
    on "$one" 'cd /root && apt-get -qq --yes install ./hikkoshi_*.deb >/dev/null
        cd /usr/share/doc/hikkoshi/examples && install -m 644 guest@.service /etc/systemd/system
        install -m 755 await-guest migrate-guest move-guests /usr/local/sbin
        adduser --quiet --system --group --no-create-home qemu'
done
no_command() { :; }
read_guide install_file no_command
# The third one is another destination.
on destination 'tar -C / -cf /srv/shared/files.tar etc/guests etc/hikkoshi etc/systemd/system'
on third 'tar -C / -xf /srv/shared/files.tar && sed -i "s/10\.0\.0\.2/10.0.0.3/" /etc/hikkoshi/receive/*'
for one in source destination third; do
    on "$one" 'sed s/db1/db2/ /etc/guests/db1.qemu >/etc/guests/db2.qemu && systemctl daemon-reload'
done
on source 'systemctl start guest@db1 guest@db2'
for guest in db1 db2; do assert_runs source $guest; done

# move_slowly GUEST HOST: it runs there, and most of its pages are missing. What moves it is a process of
# the host, which ends with it.
move_slowly() {
    on source "export MIGRATE_OPTIONS='--mode postcopy --bandwidth 100K'
        setsid sh -c 'move-guests $2 $1; echo status \$?' &>/srv/shared/move.log &"
    assert_runs "$2" "$1"
}

# shut_down HOST UNIT: the shutdown has begun, and waits for this unit.
shut_down() {
    on "$1" 'systemctl poweroff'
    wait_for "$1" "[ \"\$(systemctl is-active $2)\" = deactivating ]" "$2 to be stopped"
}

# The shutdown ends, and the host with it.
ends() {
    local tries=9000
    while kill -0 "${jobs[$1]}" 2>/dev/null; do
        ((tries--)) || fail "$1 does not shut down: $(on "$1" 'systemctl list-jobs --no-pager')"
        sleep 0.1
    done
    unset "host[$1]"
}

# The destination. Its QEMU, which needs the pages, ends after the engine.
move_slowly db1 destination
shut_down destination hikkoshi-receive@db1
for _ in 1 2 3; do assert_runs_on destination db1; done
[[ $(on destination 'systemctl list-jobs') == *poweroff.target* ]] || fail "the destination does not shut down any more"
on source 'hikkoshi set --bandwidth none' >/dev/null
wait_for source "grep -Fx 'status 0' /srv/shared/move.log && grep -Fx 'db1: moved' /srv/shared/move.log" "move-guests to say that db1 has moved"
ends destination
echo "shutdown: the destination has waited until all pages of its guest had arrived"

# The source.
move_slowly db2 third
shut_down source migrate-db2
for _ in 1 2 3; do assert_runs_on third db2; done
on source 'hikkoshi set --bandwidth none' >/dev/null
wait_for third '! systemctl --quiet is-active hikkoshi-receive@db2 && [ ! -e /run/hikkoshi/destination-*.json ]' "the guest to be complete"
[[ $(on third 'systemctl show --value --property=Result hikkoshi-receive@db2') == success ]] || fail "db2 was not received"
ends source
assert_runs_on third db2
echo "shutdown: the source has waited until all pages of its guest were sent"
