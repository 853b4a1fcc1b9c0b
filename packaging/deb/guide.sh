#!/usr/bin/env bash
# Executes the operator's guide: `guide.sh WORK ROOT`, as root. ROOT is a Debian root with what the
# guide's commands need, as overlayfs takes it, WORK/shared has the package and the test guest.
#
# Two hosts are started from ROOT, each with systemd as its first process. The fenced blocks of
# docs/operating.md are executed in order: `console` has commands after `source# ` or
# `destination# ` (lines that begin with blanks continue a command), each of which must succeed;
# `ini` and `sh` are files, whose first or second line says where: `# both: /path`. After a command
# that ends with ` &`, pre-copy must begin before the next one, or with `--mode postcopy` the guest
# must come to run at the destination.
#
# What the guide leaves to the reader is added here: the hosts' names and ssh keys, the guests'
# machines, a firewall. In the end the guests' own checks must have found no wrong page.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
work=$1 root=$2
guide=docs/operating.md
declare -A host=() jobs=()

fail() {
    printf 'guide: %s\n' "$*" >&2
    exit 1
}

# Ends both hosts. `unshare --kill-child` ends all of their processes.
end_hosts() {
    local one
    for one in "${jobs[@]}"; do kill -KILL "$one" 2>/dev/null || true; done
    wait 2>/dev/null || true
    ip link delete hk-guide0 2>/dev/null || true
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
    local tries=600
    until on "$1" "$2" >/dev/null 2>&1; do
        ((tries--)) || fail "$1: timed out waiting for $3"
        sleep 0.2
    done
}

start_host() {
    local name=$1 address=$2
    OWN_CGROUP=hikkoshi-guide-$$-$name unshare --mount --uts --ipc --net --pid --fork --kill-child \
        packaging/deb/in-root.sh "$root" "$work/shared" /lib/systemd/systemd --log-target=null \
        --unit=multi-user.target &>"$work/$name.log" </dev/null &
    jobs[$name]=$!
    local tries=100 first=
    until first=$(pgrep --parent "${jobs[$name]}" --full '^/lib/systemd/systemd') && [[ $first ]]; do
        ((tries--)) || fail "the host $name does not start: $(tail -n 5 "$work/$name.log")"
        sleep 0.1
    done
    host[$name]=$first
    wait_for "$name" 'systemctl is-system-running --wait | grep -E "running|degraded"' systemd
    on "$name" "hostname $name
        printf '127.0.0.1 localhost\n10.0.0.1 source\n10.0.0.2 destination\n' >/etc/hosts
        ip link set lo up"
    ip link set "$3" netns "${host[$name]}"
    on "$name" "ip address add $address/24 dev $3 && ip link set $3 up
        mkdir -p /etc/guests
        cp /srv/shared/hikkoshi_*.deb /root"
    local guest
    for guest in web db1 db2 mail; do
        # A guest that writes and checks 32 MiB of memory.
        printf '[machine]\n  type = "q35"\n  kernel = "/srv/shared/vmlinuz"\n  initrd = "/srv/shared/initramfs.cpio"\n  append = "%s"\n[memory]\n  size = "192"\n[chardev "console"]\n  backend = "file"\n  path = "/run/guests/%s/console"\n[device "serial0"]\n  driver = "isa-serial"\n  chardev = "console"\n' \
            "console=ttyS0 quiet loglevel=1 panic=-1 no_timer_check mitigations=off cryptomgr.notests hk.workload=verify hk.mib=32 hk.rate=500 hk.every_ms=500" \
            "$guest" >"$work/shared/$guest.qemu"
        [[ $guest != mail ]] || printf '[drive "disk"]\n  if = "virtio"\n  format = "qcow2"\n  file = "/var/lib/guests/mail.qcow2"\n' >>"$work/shared/mail.qemu"
        on "$name" "cp /srv/shared/$guest.qemu /etc/guests"
    done
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

ip link add hk-guide0 type veth peer name hk-guide1
start_host source 10.0.0.1 hk-guide0
start_host destination 10.0.0.2 hk-guide1
for one in source destination; do
    on $one "mkdir -p -m 700 /root/.ssh && ssh-keygen -q -t ed25519 -N '' -f /root/.ssh/id_ed25519 && systemctl start ssh
        cp /root/.ssh/id_ed25519.pub /srv/shared/$one.pub"
done
on destination "cp /srv/shared/source.pub /root/.ssh/authorized_keys && ssh-keyscan -t ed25519 source >/root/.ssh/known_hosts 2>/dev/null"
on source "cp /srv/shared/destination.pub /root/.ssh/authorized_keys && ssh-keyscan -t ed25519 destination >/root/.ssh/known_hosts 2>/dev/null"

declare -i commands=0 files=0
background=

run_command() {
    local where=$1 command=$2
    commands+=1
    printf '%s# %s\n' "$where" "$command"
    if [[ $command == *' &' ]]; then
        on "$where" "${command% &}" &>"$work/background.log" &
        background=$!
        if [[ $command == *'--mode postcopy'* ]]; then
            assert_runs destination web
        else
            wait_for "$where" "hikkoshi status --json | grep -F '\"precopy\"'" "pre-copy to begin: $(cat "$work/background.log")"
        fi
        return
    fi
    local output one
    output=$(on "$where" "$command" 2>&1) || {
        printf 'exit status %s: %s\n' "$?" "$output" >&2
        for one in source destination; do
            on "$one" "journalctl --quiet --no-pager --lines 30 --unit 'hikkoshi-*' --unit 'guest@*'; ls -lR /run/hikkoshi" >&2 || true
        done
        fail "a command of the guide failed"
    }
    [[ ! $output ]] || printf '%s\n' "$output" | head -n 8
}

# What has to hold after a command, beyond its exit status.
after_command() {
    case "$1 $2" in
    'source systemctl start guest@web') assert_runs source web ;;
    'source systemctl start guest@db1 guest@db2') assert_runs source db1 && assert_runs source db2 ;;
    source*'--to - --json /var/tmp/web.json')
        assert_runs destination web
        on source 'grep -q "\"mode\": *\"hybrid\"" /var/tmp/web.json' || fail "the result is not in web.json"
        ;;
    'source qemu-img create'*) on source "qemu-io -f qcow2 -c 'write -P 0xab 1M 32M' /var/lib/guests/mail.qcow2" >/dev/null ;;
    source*'--copy-disks'*)
        assert_runs destination mail
        on source 'grep -q "\"disks\"" /var/tmp/mail.json' || fail "the disks are not in mail.json"
        on destination "qemu-io -f qcow2 -r -U -c 'read -P 0xab 1M 32M' /var/lib/guests/mail.qcow2 | grep -F 'read 33554432/33554432'" >/dev/null ||
            fail "the destination's disk has other content"
        ;;
    'source systemctl enable'*hikkoshi-receive.service)
        # Each guest's console has a folder, which its service makes otherwise.
        on source 'mkdir -p /run/guests/db1 /run/guests/db2'
        ;;
    destination*'ssh source hikkoshi invite'*) assert_runs source db1 ;;
    destination*'--name db2'*) assert_runs source db2 ;;
    'source systemctl start hikkoshi-dashboard')
        wait_for source 'ss --no-header --listening --tcp --numeric "sport = 8077" | grep -F 127.0.0.1' "the dashboard to listen"
        ;;
    'source hikkoshi status') on source 'hikkoshi status | grep -F /run/hikkoshi/machines/db1.qmp' >/dev/null || fail "status does not show the guest" ;;
    'source hikkoshi switch')
        wait "$background" || fail "the migration has failed: $(cat "$work/background.log")"
        assert_runs destination db1
        ;;
    'source hikkoshi cancel')
        wait "$background" && fail "the cancelled migration has succeeded"
        assert_runs_on source db2
        ;;
    'source move-guests destination db1 db2') assert_runs destination db1 && assert_runs destination db2 ;;
    destination*'source:7000'*) assert_runs source web ;;
    'source hikkoshi migrate --resume'*)
        # Both engines were killed: the destination's was resumed by its service.
        wait "$background" && fail "the killed engine has succeeded"
        wait_for destination '! systemctl is-active hikkoshi-resume@web' "the resumed service to end"
        # shellcheck disable=SC2016 # The host's shell expands it.
        on destination '[ "$(systemctl show --value --property Result hikkoshi-resume@web)" = success ]' ||
            fail "hikkoshi-resume@web has failed"
        on destination "[ \$(grep -c '^verify: ok' /run/guests/web/console) -gt 1 ]" || fail "the guest does not run"
        assert_runs destination web
        ;;
    *'ls /run/hikkoshi')
        [[ $(on "$1" "find /run/hikkoshi -maxdepth 1 -type f") == '' ]] || fail "$1 has a journal that nobody needs"
        ;;
    *'apt purge'*)
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

install_file() {
    local text=$1 where path one
    where=$(sed -nE '1,2s/^# (both|source|destination): (\/.*)$/\1/p' <<<"$text")
    path=$(sed -nE '1,2s/^# (both|source|destination): (\/.*)$/\2/p' <<<"$text")
    [[ $where && $path ]] || fail "a file of the guide does not say where it belongs: $text"
    files+=1
    [[ $where != both ]] || where='source destination'
    for one in $where; do
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
        [[ $kind =~ ^(console|ini|sh)$ ]] || fail "a block of the guide is of the kind '$kind'"
    elif [[ $line == '```' ]]; then
        case $kind in
        console) end_command ;;
        *) install_file "${text%$'\n'}" ;;
        esac
        kind=''
    elif [[ $kind == console ]]; then
        if [[ $line =~ ^(source|destination)\#\ (.*)$ ]]; then
            end_command
            where=${BASH_REMATCH[1]} command=${BASH_REMATCH[2]}
        elif [[ $line == ' '* && $command == *\\ ]]; then
            command=${command%\\}${line#"${line%%[! ]*}"}
        else
            fail "a line of a console block is not a command: $line"
        fi
    elif [[ $kind ]]; then
        text+=$line$'\n'
    fi
done <"$guide"
((commands > 30 && files > 5)) || fail "only $commands commands and $files files were found in $guide"
echo "guide: $commands commands and $files files of $guide were used on two hosts with systemd"
