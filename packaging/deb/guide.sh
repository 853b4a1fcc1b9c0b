#!/usr/bin/env bash
# Executes the operator's guide: `guide.sh WORK ROOT`, as root. ROOT is a Debian root with what the
# guide's commands need, as overlayfs takes it, WORK/shared has the package and the test guest.
#
# Two hosts are started from ROOT, each with systemd as its first process, and a machine without, of
# the authority. The fenced blocks of docs/operating.md are executed in order: `console` has commands
# after `source# `, `destination# ` or `authority# ` (lines that begin with blanks continue a command),
# each of which must succeed, or end as `# status N` says; `ini`, `sh` and `nft` are files, whose first
# or second line says where: `# both: /path`. After a command that ends with ` &`, pre-copy must begin
# before the next one, or with `--mode postcopy` the guest must come to run on the other host.
#
# What the guide leaves to the reader is added here: the hosts' names, bridges and ssh keys, and what
# the guests do. In the end the guests' own checks must have found no wrong page. after_command has
# more checks, and each of them must have been made: a command that is changed does not lose its check.
#
# CI runs it beside emulated guests that keep all processors busy. So nothing here or in the guide
# depends on how fast a host, a guest or a command is: what has to happen is waited for, and what has
# to last until a later command is much longer than that takes.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
# shellcheck source=hosts.sh
source packaging/deb/hosts.sh guide "$1" "$2"

start_hosts source destination
# It reaches the hosts by the network of one of them.
in_host authority nsenter --net="/proc/${host[source]}/ns/net" unshare --mount --uts --ipc --pid --fork --kill-child \
    packaging/deb/in-root.sh "$root" "$work/shared" sleep infinity
name_host authority
known_to authority source destination

declare -i commands=0 files=0

run_command() {
    local where=$1 command=$2 expected=0 status=0 output
    commands+=1
    printf '%s# %s\n' "$where" "$command"
    if [[ $command == *' &' ]]; then
        [[ ! $background ]] || fail "the command before has not ended"
        on "$where" "${command% &}" &>"$work/background.log" &
        background=$!
        [[ $command == *'--mode postcopy'* ]] || wait_for "$where" "hikkoshi status --json | grep -F '\"precopy\"'" \
            "pre-copy to begin: $(cat "$work/background.log")"
        return
    fi
    if [[ $command =~ ^(.*)\ \#\ status\ ([0-9]+)$ ]]; then
        command=${BASH_REMATCH[1]} expected=${BASH_REMATCH[2]}
    fi
    output=$(on "$where" "$command" 2>&1) || status=$?
    ((status == expected)) ||
        fail "a command of the guide has ended with status $status instead of $expected: $output"
    # `head` would end before it has read everything, and printf by a signal.
    [[ ! $output ]] || sed -n 1,8p <<<"$output"
}

# Checks that were made, by name.
declare -A made=()
check() { made[$1]=1; }

# What has to hold after a command, beyond its exit status.
# shellcheck disable=SC2016 # The hosts' shells expand these.
after_command() {
    case "$1 $2" in
    'source systemctl start guest@web')
        if [[ ${made[gives-up]:-} ]]; then
            check boots-again
            assert_runs source web
            return
        fi
        check boots
        assert_runs source web
        # Frames for the guest, so often that some arrive in the switchover. Nothing is started for
        # each of them, and other processes do not delay them.
        on source 'ip neighbour replace 10.0.0.9 lladdr 52:54:00:00:00:01 dev br0 nud permanent
            systemd-run --quiet --collect --unit=frames --property=Nice=-20 bash -c \
                "exec 3<> <(:); while :; do echo >/dev/udp/10.0.0.9/9; read -t 0.002 -u 3; done"'
        ;;
    'destination await-guest web')
        check waits
        on destination 'hikkoshi check --qmp /run/guests/web/qmp --json - | grep "\"inmigrate\""' || fail "QEMU does not wait"
        on destination '[ ! -e /run/guests/web.incoming ]' || fail "the next start of guest@web would wait, too"
        ! on destination 'await-guest web' 2>/dev/null || fail "a guest that waits is awaited again"
        ;;
    'source systemctl start guest@db1 guest@db2')
        check boots-two
        assert_runs source db1 && assert_runs source db2
        ;;
    source*'--to - --json /run/guests/web.json')
        check moves
        assert_runs destination web
        on source 'systemctl stop frames; grep -q "\"mode\": *\"hybrid\"" /run/guests/web.json' || fail "the result is not in web.json"
        on source 'grep -E "\"kept\": *[1-9]" /run/guests/web.json' || fail "no frames were kept: $(on source 'cat /run/guests/web.json')"
        ;;
    'destination journalctl'*'hikkoshi-receive@web'*)
        check no-invitation
        # The unit ends a moment after the source has the result.
        wait_for destination '[ ! -e /run/hikkoshi/invitations/web ]' "the invitation to be removed"
        ! on destination 'journalctl --quiet --no-pager | grep hikkoshi1:' || fail "an invitation is in the log"
        ;;
    'source move-guests destination db1 db2')
        check moves-two
        assert_runs destination db1 && assert_runs destination db2
        ;;
    'source move-guests destination db1 db2 # status 1')
        check moves-nothing-twice
        assert_runs_on destination db1
        assert_runs_on destination db2
        branches_of_move_guests
        engines_of_move_guests_are_killed
        ;;
    'source qemu-img create'*) on source "qemu-io -f qcow2 -c 'write -P 0xab 1M 32M' /var/lib/guests/mail.qcow2" >/dev/null ;;
    source*'hikkoshi migrate '*'--copy-disks'*)
        check copies-disks
        assert_runs destination mail
        on source 'grep -q "\"disks\"" /run/guests/mail.json' || fail "the disks are not in mail.json"
        on destination "qemu-io -f qcow2 -r -U -c 'read -P 0xab 1M 32M' /var/lib/guests/mail.qcow2 | grep -F 'read 33554432/33554432'" >/dev/null ||
            fail "the destination's disk has other content"
        ;;
    'destination systemctl restart guest@mail')
        check reboots-from-its-disks
        assert_runs destination mail
        ;;
    'destination apt install --yes nftables'*)
        check firewall
        other_hosts_are_refused
        ;;
    authority*'scp $host.key'*)
        check certificates
        [[ ! $(on source 'find / -xdev -name ca.key -not -path "/srv/*"') ]] || fail "the authority's key is on a host"
        ;;
    authority*'scp $host.crt $host:/etc/hikkoshi/host.crt || exit'*)
        check renews
        for one in source destination; do
            [[ $(on authority "cat /root/migration-ca/$one.crt") == "$(on $one 'cat /etc/hikkoshi/host.crt')" ]] ||
                fail "$one has not got its new certificate"
        done
        ;;
    destination*'source:7001'*'--quit-source')
        check moves-by-certificate
        assert_runs source web
        ;;
    destination*'ssh source hikkoshi invite'*)
        check moves-by-daemon
        assert_runs source db1
        ;;
    'source systemctl show --property=MemoryMax'*)
        check own-unit
        on source 'test "$(systemctl show --value --property MemoryMax guest-db1.scope)" = 2147483648' || fail "the guest has no limit"
        on source 'grep guest-db1.scope "/proc/$(pgrep --full "^[^ ]*qemu-system-x86_64 -name db1")/cgroup"' || fail "QEMU is not in its own unit"
        ;;
    destination*'--name db2'*)
        check moves-by-daemon-with-certificate
        assert_runs source db2
        ;;
    'source systemctl start hikkoshi-dashboard')
        check dashboard
        wait_for source 'ss --no-header --listening --tcp --numeric "sport = 8077" | grep -F 127.0.0.1' "the dashboard to listen"
        ;;
    'source hikkoshi status')
        check status
        on source 'hikkoshi status | grep "^db1 "' >/dev/null || fail "status does not show the guest"
        ;;
    'source hikkoshi switch')
        check switches
        assert_runs destination db1
        ;;
    'source hikkoshi set --bandwidth none')
        check sets-no-limit
        background_ends 0
        assert_runs_on destination db1
        ;;
    'source hikkoshi cancel')
        check cancels
        background_ends 1
        assert_runs_on source db2
        ;;
    source*'--to - --mode postcopy'*'&')
        check postcopy-begins
        assert_runs destination web
        # Whatever becomes of this file, the guest gets its pages (resumption_fails_for_a_while).
        [[ ${made[resumes-again-and-again]:-} ]] || on destination 'mv /etc/hikkoshi/receive/web.conf /root'
        ;;
    destination*'--mode postcopy'*'&')
        check postcopy-begins-back
        assert_runs source web
        ;;
    'destination systemctl show --property=Id,JobTimeoutUSec'*)
        check shutdown-without-limit
        shutdown_has_no_limit
        ;;
    'destination until'*)
        check resumes-again-and-again
        resumption_fails_for_a_while
        ;;
    'source until'*)
        check resumes-at-source
        wait_for source 'journalctl --quiet --no-pager --unit resume-web | grep -F "reconnected to the destination"' \
            "migrate-guest to resume the migration"
        ;;
    'source systemctl stop --no-block resume-web'*)
        check takes-over
        background_ends 255
        ;;
    'source hikkoshi migrate --resume'*'--bandwidth 1G')
        # The destination's engine was resumed by its service.
        check resumes
        wait_for destination '! systemctl is-active hikkoshi-resume@web' "the resumed service to end"
        on destination '[ "$(systemctl show --value --property Result hikkoshi-resume@web)" = success ]' ||
            fail "hikkoshi-resume@web has failed"
        assert_runs_on destination web
        ;;
    'destination journalctl'*'hikkoshi-resume@web'*)
        # Status 0 before it has started: it is not started again.
        check nothing-to-resume
        ! on destination 'systemctl start hikkoshi-resume@web' 2>/dev/null || fail "hikkoshi-resume@web has something to resume"
        [[ $(on destination 'systemctl show --value --property SubState hikkoshi-resume@web') == failed ]] ||
            fail "hikkoshi-resume@web is started again, with nothing to resume"
        on destination 'systemctl reset-failed hikkoshi-resume@web'
        ;;
    'destination systemctl kill --signal=KILL migrate-web guest@web')
        check source-is-lost
        background_ends 255
        ;;
    'source hikkoshi receive --resume --give-up --qmp'*)
        check explains-giving-up
        assert_qemu source web
        ;;
    'source hikkoshi receive --resume --give-up --other-side-is-lost'*)
        check gives-up
        wait_for source '! systemctl is-active guest@web' "QEMU to end"
        ;;
    'destination apt purge --yes hikkoshi # status 100')
        check keeps-needed-program
        on destination 'hikkoshi --version' >/dev/null || fail "the program was removed"
        stop_times_out
        ;;
    'source hikkoshi set --bandwidth 1G')
        check moves-during-upgrade
        background_ends 0
        assert_runs_on destination web
        ;;
    'source ls /run/hikkoshi' | 'destination ls /run/hikkoshi')
        check "no-journal-$1"
        [[ $(on "$1" "find /run/hikkoshi -maxdepth 1 -type f") == '' ]] || fail "$1 has a journal that nobody needs"
        ;;
    *'apt purge --yes hikkoshi')
        check "purges-$1"
        # The guide's own files stay, and what others cache.
        local left
        left=$(on "$1" "find / -xdev -name '*hikkoshi*' ! -path '/etc/hikkoshi*' ! -path '/etc/systemd/system/*' \
            ! -path '/root/*' ! -path '/var/log/*' ! -path '/var/cache/*'")
        [[ ! $left ]] || fail "$1: purge leaves: $left"
        left=$(on "$1" "find /etc/systemd -path '*.wants/*hikkoshi*'; find /run/hikkoshi ! -type d 2>/dev/null | sort" | tr '\n' ' ')
        if [[ $1 == source ]]; then
            # Of a guest that runs.
            [[ $left == '/run/hikkoshi/machines/db2.log /run/hikkoshi/machines/db2.qmp ' ]] || fail "source: purge leaves: $left"
            assert_runs_on source db2
        else
            [[ ! $left ]] || fail "$1: purge leaves: $left"
            on "$1" '[ ! -e /run/hikkoshi ]' || fail "$1: purge leaves /run/hikkoshi"
        fi
        ;;
    esac
}

# All checks of after_command were made. Those with a host in their name are for both hosts.
assert_checks_made() {
    local name
    while read -r name; do
        [[ ${made[$name]:-} || (${made[$name-source]:-} && ${made[$name-destination]:-}) ]] ||
            fail "no command of the guide has led to the check '$name'"
    done < <(sed -nE '/^after_command/,/^}/s/^ *check "?([a-z-]+[a-z]).*/\1/p' packaging/deb/guide.sh)
}

# Its QEMU runs, as a process, in its unit.
assert_qemu() { on "$1" "systemctl --quiet is-active guest@$2" || fail "the QEMU of $2 has ended"; }

# What move-guests does if a guest is not moved at once, with a guest that `source` does not have. How
# its engines end is pretended: first that of `migrate`, then those that resume. With 3 there is a
# journal, and with `another` it is that of another command.
# shellcheck disable=SC2016 # The host's shell expands these.
branches_of_move_guests() {
    local ends status said waits
    on destination 'sed s/db1/db3/ /etc/guests/db1.qemu >/etc/guests/db3.qemu
        sed "s/7002/7005/; s/db1/db3/" /etc/hikkoshi/receive/db1.conf >/etc/hikkoshi/receive/db3.conf'
    cat >"$work/shared/pretended" <<'SH'
#!/bin/sh
status=$(sed -n 1p /tmp/ends)
sed -i 1d /tmp/ends
[ "$status" != 3 ] || touch /run/guests/db3.journal
case $status in
another) echo exited:3 ;;
*:*) echo "$status" ;;
*) echo "exited:$status" ;;
esac >/run/guests/db3.ended
SH
    while read -r ends status said waits; do
        case $ends in
        # `source` has no such guest; the receiver waits, and is stopped.
        migrate) ;;
        # There is no invitation, because there is no receiver; nothing is left to be started.
        receiver) on destination 'echo RECEIVE_OPTIONS= >/etc/hikkoshi/receive/db3.conf' ;;
        *) on source "printf '%s\n' ${ends//,/ } >/tmp/ends
            install -m 755 /srv/shared/pretended /usr/local/sbin/systemd-run" ;;
        esac
        local output ended=0
        output=$(on source 'move-guests destination db3' 2>&1) || ended=$?
        [[ $ended == "$status" && $output == *"db3: $said"* ]] ||
            fail "move-guests: $ends: status $ended: $output"
        [[ $ends == [mr]* || ! $(on source 'cat /tmp/ends') ]] || fail "move-guests: $ends: it does not resume"
        ended=active
        on destination 'systemctl --quiet is-active guest@db3' || ended=ended
        [[ $ended == "$waits" ]] || fail "move-guests: $ends: QEMU at the destination: $ended"
        on source 'rm -f /usr/local/sbin/systemd-run /run/guests/db3.journal'
        # So that systemd does not count how often they are started.
        on destination 'systemctl stop hikkoshi-receive@db3 guest@db3 && systemctl reset-failed'
    done <<'TABLE'
migrate 1 still ended
1 1 still ended
2 2 still ended
4 4 lost active
3,1 1 still ended
3,2 3 not active
another 3 not active
0 0 moved active
killed:KILL,4 4 lost active
killed:TERM,0 0 moved active
killed:TERM,killed:KILL 255 not active
receiver 1 not ended
TABLE
    # Who reads its output ends before it.
    on destination 'sed "s/7002/7005/; s/db1/db3/" /etc/hikkoshi/receive/db1.conf >/etc/hikkoshi/receive/db3.conf'
    on source 'printf "%s\n" 3 0 >/tmp/ends && install -m 755 /srv/shared/pretended /usr/local/sbin/systemd-run
        { move-guests destination db3; echo $? >/tmp/status; } 2>&1 | true
        rm -f /usr/local/sbin/systemd-run /run/guests/db3.journal'
    [[ $(on source 'cat /tmp/status /tmp/ends') == 0 ]] || fail "move-guests ends with its reader: $(on source 'cat /tmp/status /tmp/ends')"
    on destination 'systemctl stop hikkoshi-receive@db3 guest@db3 && systemctl reset-failed'
    on destination 'sed "s/7002/7005/; s/db1/db3/" /etc/hikkoshi/receive/db1.conf >/etc/hikkoshi/receive/db3.conf'
}

# The engines that move-guests starts are really killed. In pre-copy the guest stays; in post-copy the
# migration is resumed, here with the memory that nothing holds but the engine's guard.
engines_of_move_guests_are_killed() {
    move() {
        on source "MIGRATE_OPTIONS='$1' move-guests destination db3" &>"$work/background.log" &
        background=$!
    }
    on source 'sed s/db1/db3/ /etc/guests/db1.qemu >/etc/guests/db3.qemu && systemctl start guest@db3'
    assert_runs source db3

    move '--bandwidth 100K'
    wait_for source "hikkoshi status --json | grep -F '\"precopy\"'" "pre-copy to begin"
    on source 'systemctl kill --kill-whom=main --signal=KILL migrate-db3'
    background_ends 1
    grep -F 'db3: still here' "$work/background.log" >/dev/null || fail "move-guests has not said that db3 is here"
    assert_runs_on source db3
    ! on destination 'systemctl --quiet is-active guest@db3' || fail "a QEMU still waits for db3"

    move '--mode postcopy --bandwidth 100K'
    assert_runs destination db3
    on source 'systemctl kill --signal=KILL guest@db3 && systemctl kill --kill-whom=main --signal=KILL migrate-db3'
    wait_for source 'journalctl --quiet --no-pager --unit resume-db3 | grep -F "reconnected to the destination"' \
        "move-guests to resume the migration"
    # The result cannot be written.
    on source 'mkdir /run/guests/db3.json'
    on source 'hikkoshi set --bandwidth none' >/dev/null
    background_ends 0
    on source 'rmdir /run/guests/db3.json'
    grep -F 'db3: moved' "$work/background.log" >/dev/null || fail "move-guests has not said that db3 has moved"
    assert_runs_on destination db3
    on destination 'systemctl stop guest@db3'
}

# Whatever a shutdown waits for, systemd does not end it by force.
shutdown_has_no_limit() {
    local one unit limit
    for one in source destination; do
        for unit in reboot poweroff halt kexec; do
            for limit in JobTimeoutUSec JobRunningTimeoutUSec; do
                limit+="=$(on $one "systemctl show --value --property=$limit $unit.target")"
                [[ $limit == *=infinity ]] || fail "$one: $unit.target: $limit"
            done
        done
        for unit in hikkoshi-receive@web hikkoshi-resume@web; do
            [[ $(on $one "systemctl show --value --property=TimeoutStopUSec $unit") == infinity ]] ||
                fail "stopping $unit at $one has a limit"
        done
    done
}

# A listener that anybody could reach is reached by the other host, and by no other address.
other_hosts_are_refused() {
    on destination 'systemd-run --quiet --collect --unit=listener systemd-socket-activate --accept --inetd --listen=7099 cat'
    wait_for destination 'ss --no-header --listening --tcp --numeric "sport = 7099" | grep -F 7099' "a listener"
    on source 'exec 3<>/dev/tcp/10.0.0.2/7099' || fail "the other host is refused"
    on source 'ip address add 10.0.0.3/24 dev br0 && ip route add 10.0.0.2/32 dev br0 src 10.0.0.3'
    # It tries for minutes if its packets are dropped.
    on source 'exec 3<>/dev/tcp/10.0.0.2/7099' 2>/dev/null &
    local connecting=$!
    wait_for destination 'nft list chain inet hikkoshi input | grep -E "counter packets [1-9]"' "a dropped packet"
    kill -0 $connecting || fail "another address is accepted, or told that it is not"
    kill $connecting
    wait $connecting 2>/dev/null || true
    on source 'ip route delete 10.0.0.2/32 dev br0 && ip address delete 10.0.0.3/24 dev br0'
    on destination 'systemctl stop listener'
}

# The resumed engine is killed, and another process has its port for longer than twenty attempts. Then
# the program fails in ways of its own, and systemd cannot start it. When that is over, it resumes.
# shellcheck disable=SC2016 # The host's shell expands these.
resumption_fails_for_a_while() {
    local drop_in=/run/systemd/system/hikkoshi-resume@web.service.d failing status
    # Waits until a property of the unit has this value.
    unit_has() { wait_for destination "[ \"\$(systemctl show --value --property $1 hikkoshi-resume@web)\" $2 ]" "$1 $2 of hikkoshi-resume@web"; }
    on destination "mkdir -p $drop_in && printf '[Service]\nRestartSec=100ms\n' >$drop_in/often.conf && systemctl daemon-reload"
    # It was started without this.
    on destination 'mv /root/web.conf /etc/hikkoshi/receive'
    # It is killed until the other one was faster.
    on destination 'systemd-run --quiet --collect --unit=port bash -c "until systemd-socket-activate --listen=10.0.0.2:7001 sleep infinity; do :; done"'
    wait_for destination 'ss --no-header --listening --tcp --processes --numeric "sport = 7001" | grep -E "systemd-socket|sleep" ||
        { systemctl kill --signal=KILL hikkoshi-resume@web; false; }' "another process to have the port"
    unit_has NRestarts '-gt 21'
    unit_has ExecMainStatus '= 3'
    on destination 'systemctl stop port'
    unit_has ActiveState '= active'
    # A panic, and namespaces that cannot be made.
    while read -r status failing; do
        on destination "printf '[Service]\n%b\n' '$failing' >$drop_in/failing.conf && systemctl daemon-reload
            systemctl kill --signal=KILL hikkoshi-resume@web"
        # Of whatever was started last, before the engine or the engine.
        wait_for destination "systemctl show --property=ExecStartPre,ExecStart hikkoshi-resume@web | grep -F 'code=exited ; status=$status '" \
            "hikkoshi-resume@web to fail with status $status"
        on destination "rm $drop_in/failing.conf && systemctl daemon-reload"
        unit_has ActiveState '= active'
    done <<'TABLE'
101 ExecStart=\nExecStart=/bin/sh -c "exit 101"
226 ReadWritePaths=/nowhere
TABLE
    # What systemd needs before it starts anything.
    on destination "printf '[Service]\nEnvironmentFile=/nowhere\n' >$drop_in/failing.conf && systemctl daemon-reload
        systemctl kill --signal=KILL hikkoshi-resume@web"
    unit_has Result '= resources'
    on destination "rm $drop_in/failing.conf && systemctl daemon-reload"
    unit_has ActiveState '= active'
    # Mistakes in RESUME_OPTIONS: one in the command line, and an address that is not this host's.
    for failing in --bogus '--listen 10.9.9.9:7001'; do
        on destination "echo RESUME_OPTIONS=$failing >>/etc/hikkoshi/receive/web.conf && systemctl kill --signal=KILL hikkoshi-resume@web"
        wait_for destination "journalctl --quiet --no-pager --unit hikkoshi-resume@web | grep -F 'web.conf, with which it has failed: $failing'" \
            "hikkoshi-resume@web to say that it has failed with its options"
        unit_has ActiveState '= active'
        on destination 'sed -i /RESUME_OPTIONS/d /etc/hikkoshi/receive/web.conf'
    done
    on destination "rm -r $drop_in && systemctl daemon-reload"
}

# In post-copy the unit waits for the pages, however long it takes. If an administrator has set a
# limit, systemd kills the engine, and it is resumed.
stop_times_out() {
    local unit
    for unit in hikkoshi-receive@web hikkoshi-resume@web; do
        [[ $(on destination "systemctl show --value --property TimeoutStopUSec $unit") == infinity ]] ||
            fail "stopping $unit has a limit"
    done
    on destination 'systemctl stop --no-block hikkoshi-receive@web && sleep 2'
    [[ $(on destination 'systemctl is-active hikkoshi-receive@web') == deactivating ]] || fail "the engine does not wait for its pages"
    on destination 'mkdir -p /run/systemd/system/hikkoshi-receive@web.service.d
        printf "[Service]\nTimeoutStopSec=1s\n" >/run/systemd/system/hikkoshi-receive@web.service.d/limit.conf
        systemctl daemon-reload'
    wait_for destination 'systemctl --quiet is-active hikkoshi-resume@web' "the engine that was stopped to be resumed"
    on destination 'rm -r /run/systemd/system/hikkoshi-receive@web.service.d && systemctl daemon-reload'
}

install_one() {
    files+=1
    install_file "$1"
}
execute() {
    run_command "$1" "$2"
    after_command "$1" "$(tr -s ' ' <<<"$2")"
}
read_guide install_one execute
[[ ! $background ]] || fail "a command of the guide still runs"
assert_checks_made
echo "guide: $commands commands and $files files of $guide were used on two hosts with systemd"
