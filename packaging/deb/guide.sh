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
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
work=$1 root=$2
guide=docs/operating.md
declare -A host=() jobs=()
# Other runs on this machine have others.
link=hkg$$

fail() {
    printf 'guide: %s\n' "$*" >&2
    # The migration that runs beside the commands may say why.
    [[ ! ${background:-} ]] || tail -n 20 "$work/background.log" >&2
    exit 1
}

# Ends both hosts. `unshare --kill-child` ends all of their processes.
end_hosts() {
    local one
    for one in "${jobs[@]}"; do kill -KILL "$one" 2>/dev/null || true; done
    wait 2>/dev/null || true
    ip link delete "${link}a" 2>/dev/null || true
    local groups
    groups=$(mktemp -d)
    mount -t cgroup2 cgroup2 "$groups"
    # The processes of a host end a moment after its first one.
    local tries=50
    until find "$groups" -depth -type d -path "$groups/hikkoshi-guide-$$-*" -exec rmdir {} + 2>/dev/null; do
        ((tries--)) || break
        sleep 0.1
    done
    umount "$groups" && rmdir "$groups"
}
trap end_hosts EXIT

# Executes a command on a host, in /root, as a shell of root does.
on() {
    nsenter --target "${host[$1]}" --mount --uts --ipc --net --pid --cgroup --root --wdns=/root \
        env -i HOME=/root LANG=C.UTF-8 DEBIAN_FRONTEND=noninteractive \
        PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin bash -c "$2" </dev/null
}

# Waits until the condition, a command on a host, holds; $3 says what it is.
wait_for() {
    # Five minutes: emulated guests are slow on a busy machine.
    local tries=1500
    until on "$1" "$2" >/dev/null 2>&1; do
        ((tries--)) || fail "$1: timed out waiting for $3"
        sleep 0.2
    done
}

# in_host NAME ARGUMENT…: starts a root with a command, and knows its first process.
in_host() {
    local name=$1 first='' tries=100
    shift
    "$@" &>"$work/$name.log" </dev/null &
    jobs[$name]=$!
    until first=$(pgrep --parent "${jobs[$name]}" --full '^(/lib/systemd/systemd|sleep)') && [[ $first ]]; do
        ((tries--)) || fail "the host $name does not start: $(tail -n 5 "$work/$name.log")"
        sleep 0.1
    done
    host[$name]=$first
}

start_host() {
    local name=$1 address=$2
    OWN_CGROUP=hikkoshi-guide-$$-$name in_host "$name" unshare --mount --uts --ipc --net --pid --fork --kill-child \
        packaging/deb/in-root.sh "$root" "$work/shared" /lib/systemd/systemd --log-target=null \
        --unit=multi-user.target
    wait_for "$name" 'systemctl is-system-running --wait | grep -E "running|degraded"' systemd
    name_host "$name"
    ip link set "$3" netns "${host[$name]}"
    # Without KVM: the test guest's kernel is slow where that is emulated. The device's mode and the
    # group are what udev makes.
    on "$name" "ip link set lo up
        ip link add br0 address 02:00:00:00:00:0${address##*.} type bridge && ip address add $address/24 dev br0 && ip link set br0 up
        ip link set $3 master br0 up
        rm -f /dev/kvm && chmod 666 /dev/net/tun && addgroup --quiet --system kvm
        mkdir -p /etc/guests /srv/guests
        cp /srv/shared/hikkoshi_*.deb /root
        cp /srv/shared/vmlinuz /srv/guests/vmlinuz && cp /srv/shared/initramfs.cpio /srv/guests/initrd"
}

name_host() {
    on "$1" "hostname $1 && printf '127.0.0.1 localhost\n10.0.0.1 source\n10.0.0.2 destination\n' >/etc/hosts"
}

# What the guest has found out about its memory: `verify: ok` lines on its console there.
assert_runs() {
    wait_for "$1" "grep -q '^verify: ok' /run/guests/$2/console" "the guest $2 to run at $1"
    ! on "$1" "grep -E 'bad=[1-9]|^bad|^failed|panic' /run/guests/$2/console" ||
        fail "the guest $2 has found wrong pages"
}

# The guest runs there, as before, and continues to check its memory.
assert_runs_on() {
    local checks
    checks=$(on "$1" "grep -c '^verify: ok' /run/guests/$2/console")
    wait_for "$1" "test \$(grep -c '^verify: ok' /run/guests/$2/console) -gt $checks" "the guest $2 to continue at $1"
    assert_runs "$1" "$2"
}

ip link add "${link}a" type veth peer name "${link}b"
start_host source 10.0.0.1 "${link}a"
start_host destination 10.0.0.2 "${link}b"
# It reaches the hosts by the network of one of them.
in_host authority nsenter --net="/proc/${host[source]}/ns/net" unshare --mount --uts --ipc --pid --fork --kill-child \
    packaging/deb/in-root.sh "$root" "$work/shared" sleep infinity
name_host authority
for one in source destination; do
    on $one "systemctl start ssh"
    for other in source destination authority; do
        [[ $one == "$other" ]] || on $other "mkdir -p -m 700 /root/.ssh && cd /root/.ssh
            [ -e id_ed25519 ] || ssh-keygen -q -t ed25519 -N '' -f id_ed25519
            cp id_ed25519.pub /srv/shared/$other.pub && ssh-keyscan -t ed25519 $one >>known_hosts 2>/dev/null"
    done
done
for one in source destination; do on $one 'cat /srv/shared/*.pub >/root/.ssh/authorized_keys'; done

declare -i commands=0 files=0
# The process of a command that was started with ` &`.
background=

run_command() {
    local where=$1 command=$2 expected=0 status=0 output one
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
    ((status == expected)) || {
        printf 'exit status %s: %s\n' "$status" "$output" >&2
        for one in source destination; do
            on "$one" "journalctl --quiet --no-pager --lines 30 --unit 'hikkoshi-*' --unit 'guest@*'; ls -lR /run/hikkoshi" >&2 || true
        done
        fail "a command of the guide has not ended with status $expected"
    }
    # `head` would end before it has read everything, and printf by a signal.
    [[ ! $output ]] || sed -n 1,8p <<<"$output"
}

# Waits for the command that was started with ` &`, which must end with this status.
background_ends() {
    local status=0
    wait "$background" || status=$?
    background=
    ((status == $1)) || fail "the migration has ended with status $status: $(cat "$work/background.log")"
}

# Checks that were made, by name.
declare -A made=()
check() { made[$1]=1; }

# What has to hold after a command, beyond its exit status.
# shellcheck disable=SC2016 # The hosts' shells expand these.
after_command() {
    case "$1 $2" in
    'source systemctl start guest@web')
        check boots
        assert_runs source web
        # Frames for the guest, as often as one may arrive in the switchover.
        on source 'ip neighbour replace 10.0.0.9 lladdr 52:54:00:00:00:01 dev br0 nud permanent
            systemd-run --quiet --collect --unit=frames bash -c "while :; do echo >/dev/udp/10.0.0.9/9; sleep 0.002; done"'
        ;;
    'source systemctl start guest@db1 guest@db2')
        check boots-two
        assert_runs source db1 && assert_runs source db2
        ;;
    source*'--to - --json /var/tmp/web.json')
        check moves
        assert_runs destination web
        on source 'systemctl stop frames; grep -q "\"mode\": *\"hybrid\"" /var/tmp/web.json' || fail "the result is not in web.json"
        on source 'grep -E "\"kept\": *[1-9]" /var/tmp/web.json' || fail "no frames were kept: $(on source 'cat /var/tmp/web.json')"
        ;;
    'destination journalctl'*'hikkoshi-receive@web'*)
        check no-invitation
        ! on destination 'ls /run/hikkoshi/invitations/web' 2>/dev/null || fail "an invitation is left"
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
        ;;
    'source qemu-img create'*) on source "qemu-io -f qcow2 -c 'write -P 0xab 1M 32M' /var/lib/guests/mail.qcow2" >/dev/null ;;
    source*'--copy-disks'*)
        check copies-disks
        assert_runs destination mail
        on source 'grep -q "\"disks\"" /var/tmp/mail.json' || fail "the disks are not in mail.json"
        on destination "qemu-io -f qcow2 -r -U -c 'read -P 0xab 1M 32M' /var/lib/guests/mail.qcow2 | grep -F 'read 33554432/33554432'" >/dev/null ||
            fail "the destination's disk has other content"
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
        on source 'hikkoshi status | grep -F /run/hikkoshi/machines/db1.qmp' >/dev/null || fail "status does not show the guest"
        ;;
    'source hikkoshi switch')
        check switches
        background_ends 0
        assert_runs destination db1
        ;;
    'source hikkoshi cancel')
        check cancels
        background_ends 1
        assert_runs_on source db2
        ;;
    source*'--to - --mode postcopy'*'&')
        check postcopy-begins
        assert_runs destination web
        ;;
    destination*'--mode postcopy'*'&')
        check postcopy-begins-back
        assert_runs source web
        ;;
    'destination until'*)
        check resumes-again-and-again
        port_is_taken_for_a_while
        ;;
    'source hikkoshi migrate --resume'*'--bandwidth 1G')
        # Both engines were killed: the destination's was resumed by its service.
        check resumes
        background_ends 137
        wait_for destination '! systemctl is-active hikkoshi-resume@web' "the resumed service to end"
        on destination '[ "$(systemctl show --value --property Result hikkoshi-resume@web)" = success ]' ||
            fail "hikkoshi-resume@web has failed"
        assert_runs_on destination web
        ;;
    'destination pkill'*)
        check source-is-lost
        background_ends 137
        ;;
    'source hikkoshi receive --resume --give-up --qmp'*)
        check explains-giving-up
        assert_qemu source web
        ;;
    'source hikkoshi receive --resume --give-up --other-side-is-lost'*)
        check gives-up
        wait_for source '! systemctl is-active guest@web' "QEMU to end"
        ;;
    'source rm /etc/guests/web.conf'*)
        check boots-again
        assert_runs source web
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

# What move-guests does if a guest is not moved, with a guest that `source` does not have. How its
# engine ends is pretended for what cannot be had quickly.
# shellcheck disable=SC2016 # The host's shell expands these.
branches_of_move_guests() {
    local given status said waits
    on destination 'sed s/db1/db3/ /etc/guests/db1.qemu >/etc/guests/db3.qemu
        cp /etc/guests/db1.conf /etc/guests/db3.conf
        sed "s/7002/7005/; s/db1/db3/" /etc/hikkoshi/receive/db1.conf >/etc/hikkoshi/receive/db3.conf'
    on source 'printf "%s\n" "#!/bin/sh" "echo {} >/var/tmp/db3.json; exit \$(cat /tmp/status)" >/tmp/pretended; chmod +x /tmp/pretended'
    while read -r given status said waits; do
        case $given in
        # `source` has no such guest; the receiver waits, and is stopped.
        migrate) ;;
        # There is no invitation, because there is no receiver; nothing is left to be started.
        receiver) on destination 'echo RECEIVE_OPTIONS= >/etc/hikkoshi/receive/db3.conf' ;;
        # Its engine is killed, and has written no result.
        killed) on source 'cp /bin/false /usr/local/sbin/systemd-run' ;;
        *) on source "echo $given >/tmp/status; cp /tmp/pretended /usr/local/sbin/systemd-run" ;;
        esac
        local output ended=0
        output=$(on source 'move-guests destination db3' 2>&1) || ended=$?
        [[ $ended == "$status" && $output == *"db3: $said"* ]] ||
            fail "move-guests: $given: status $ended: $output"
        ended=active
        on destination 'systemctl --quiet is-active guest@db3' || ended=ended
        [[ $ended == "$waits" ]] || fail "move-guests: $given: QEMU at the destination: $ended"
        on source 'rm -f /usr/local/sbin/systemd-run'
        on destination 'systemctl stop hikkoshi-receive@db3 guest@db3'
    done <<'TABLE'
migrate 1 still ended
1 1 still ended
2 2 still ended
3 3 not active
4 4 lost active
killed 255 killed active
receiver 1 not ended
TABLE
}

# A listener that anybody could reach is reached by the other host, and by no other address.
other_hosts_are_refused() {
    on destination 'systemd-run --quiet --collect --unit=listener systemd-socket-activate --accept --inetd --listen=7099 cat'
    wait_for destination 'ss --no-header --listening --tcp --numeric "sport = 7099" | grep -F 7099' "a listener"
    on source 'exec 3<>/dev/tcp/10.0.0.2/7099' || fail "the other host is refused"
    on source 'ip address add 10.0.0.3/24 dev br0 && ip route add 10.0.0.2/32 dev br0 src 10.0.0.3'
    ! on source 'timeout 2 bash -c "exec 3<>/dev/tcp/10.0.0.2/7099"' 2>/dev/null || fail "another address is accepted"
    on destination 'nft list chain inet hikkoshi input | grep -E "counter packets [1-9]"' >/dev/null ||
        fail "the firewall has dropped nothing"
    on source 'ip route delete 10.0.0.2/32 dev br0 && ip address delete 10.0.0.3/24 dev br0'
    on destination 'systemctl stop listener'
}

# shellcheck disable=SC2016 # The host's shell expands these.
# The resumed engine is killed, and another process has its port for longer than twenty attempts.
port_is_taken_for_a_while() {
    on destination 'mkdir -p /run/systemd/system/hikkoshi-resume@web.service.d
        printf "[Service]\nRestartSec=100ms\n" >/run/systemd/system/hikkoshi-resume@web.service.d/often.conf
        systemctl daemon-reload
        systemd-run --quiet --collect --unit=port bash -c "until systemd-socket-activate --listen=10.0.0.2:7001 cat; do :; done"
        systemctl kill --signal=KILL hikkoshi-resume@web'
    wait_for destination '[ "$(systemctl show --value --property NRestarts hikkoshi-resume@web)" -gt 21 ]' \
        "hikkoshi-resume@web to be restarted"
    wait_for destination '[ "$(systemctl show --value --property ExecMainStatus hikkoshi-resume@web)" = 3 ]' \
        "a resumption without its port to end with status 3"
    on destination 'rm -r /run/systemd/system/hikkoshi-resume@web.service.d && systemctl daemon-reload && systemctl stop port'
    wait_for destination 'systemctl --quiet is-active hikkoshi-resume@web' "hikkoshi-resume@web to have its port"
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

workload='console=ttyS0 quiet loglevel=1 panic=-1 no_timer_check mitigations=off cryptomgr.notests hk.workload=verify hk.mib=32 hk.rate=500 hk.every_ms=500'

install_file() {
    local text=$1 where path one
    where=$(sed -nE '1,2s/^# (both|source|destination): (\/.*)$/\1/p' <<<"$text")
    path=$(sed -nE '1,2s/^# (both|source|destination): (\/.*)$/\2/p' <<<"$text")
    [[ $where && $path ]] || fail "a file of the guide does not say where it belongs: $text"
    files+=1
    [[ $where != both ]] || where='source destination'
    for one in $where; do
        # What the test guest does: it writes and checks 32 MiB of memory.
        [[ $path != *.qemu ]] || text=${text/console=ttyS0/$workload}
        printf '%s\n' "$text" >"$work/shared/file"
        on "$one" "mkdir -p '$(dirname "$path")' && cp /srv/shared/file '$path'"
        [[ $path != */systemd/* ]] || on "$one" 'systemctl daemon-reload'
    done
}

kind='' text='' where='' command=''
end_command() {
    [[ $command ]] || return 0
    local one=$command
    command=''
    run_command "$where" "$one"
    after_command "$where" "$(tr -s ' ' <<<"$one")"
}
while IFS= read -r line; do
    if [[ $line == '```'* && ! $kind ]]; then
        kind=${line#\`\`\`} text=''
        [[ $kind =~ ^(console|ini|sh|nft)$ ]] || fail "a block of the guide is of the kind '$kind'"
    elif [[ $line == '```' ]]; then
        case $kind in
        console) end_command ;;
        *) install_file "${text%$'\n'}" ;;
        esac
        kind=''
    elif [[ $kind == console ]]; then
        if [[ $line =~ ^(source|destination|authority)\#\ (.*)$ ]]; then
            next_where=${BASH_REMATCH[1]} next_command=${BASH_REMATCH[2]}
            end_command
            where=$next_where command=$next_command
        elif [[ $line == ' '* && $command == *\\ ]]; then
            command=${command%\\}${line#"${line%%[! ]*}"}
        else
            fail "a line of a console block is not a command: $line"
        fi
    elif [[ $kind ]]; then
        text+=$line$'\n'
    fi
done <"$guide"
[[ ! $background ]] || fail "a command of the guide still runs"
assert_checks_made
echo "guide: $commands commands and $files files of $guide were used on two hosts with systemd"
