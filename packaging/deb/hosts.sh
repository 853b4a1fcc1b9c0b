# shellcheck shell=bash
# Hosts for scripts of this folder: each is a layer over a Debian root, with systemd as its first
# process, and all are in one network. `source hosts.sh SCRIPT WORK ROOT`, in the project's folder:
# SCRIPT is the name of that script, for messages, ROOT a root as in-root.sh takes it. WORK is a folder
# for files; WORK/shared has the package and the test guest, and is /srv/shared of each host.
script=$1 work=$2 root=$3
guide=docs/operating.md
# shellcheck source=groups.sh
source packaging/deb/groups.sh
# By a host's name: its first process, and the job that ends with the host.
declare -A host=() jobs=()
# Other runs on this machine have others.
link=hk$$
# The process of a command that runs beside the others.
background=

fail() {
    printf '%s: %s\n' "$script" "$*" >&2
    local one
    # The migration that runs beside the commands may say why.
    [[ ! -s $work/background.log ]] || { echo 'beside it:' && tail -n 20 "$work/background.log"; } >&2
    for one in "${!host[@]}"; do
        [[ $one != authority ]] || continue
        echo "$one:" >&2
        on "$one" "uptime; systemctl --no-pager --plain list-units --state=failed,activating,deactivating
            journalctl --quiet --no-pager --lines 40 --unit 'hikkoshi-*' --unit 'guest@*' --unit 'migrate-*' --unit 'resume-*'
            ls -lR /run/hikkoshi" >&2 || true
    done
    exit 1
}

# Ends all hosts. `unshare --kill-child` ends all of their processes.
end_hosts() {
    local one
    for one in "${jobs[@]}"; do kill -KILL "$one" 2>/dev/null || true; done
    wait 2>/dev/null || true
    for one in 2 3; do ip link delete "${link}a$one" 2>/dev/null || true; done
    remove_groups "hikkoshi-hosts-$$-"
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
    # Emulated guests are slow on a busy machine: this is for a condition that never holds.
    local deadline=$((SECONDS + 900))
    until on "$1" "$2" >/dev/null 2>&1; do
        ((SECONDS < deadline)) || fail "$1: timed out waiting for $3"
        [[ ! $background ]] || kill -0 "$background" 2>/dev/null ||
            fail "$1: waiting for $3, and the migration has ended"
        sleep 0.2
    done
}

# in_host NAME ARGUMENT…: starts a root with a command, and knows its first process.
in_host() {
    local name=$1 first='' deadline=$((SECONDS + 900))
    shift
    "$@" &>"$work/$name.log" </dev/null &
    jobs[$name]=$!
    until first=$(pgrep --parent "${jobs[$name]}" --full '^(/lib/systemd/systemd|sleep)') && [[ $first ]]; do
        if ! kill -0 "${jobs[$name]}" 2>/dev/null || ((SECONDS >= deadline)); then
            fail "the host $name does not start: $(tail -n 5 "$work/$name.log")"
        fi
        sleep 0.1
    done
    host[$name]=$first
}

# start_host NAME ADDRESS: it is connected to no other yet.
start_host() {
    local name=$1 address=$2
    # systemd's own limits are for an idle machine.
    OWN_CGROUP=hikkoshi-hosts-$$-$name in_host "$name" unshare --mount --uts --ipc --net --pid --fork --kill-child \
        packaging/deb/in-root.sh "$root" "$work/shared" bash -c 'mkdir -p /etc/systemd/system.conf.d &&
            printf "[Manager]\nDefaultTimeoutStartSec=15min\nDefaultTimeoutStopSec=15min\n" >/etc/systemd/system.conf.d/busy.conf &&
            exec /lib/systemd/systemd --log-target=null --unit=multi-user.target'
    wait_for "$name" 'systemctl is-system-running --wait | grep -E "running|degraded"' systemd
    name_host "$name"
    # Without KVM: the test guest's kernel is slow where that is emulated. The device's mode and the
    # group are what udev makes. Without an address of its own the bridge takes the lowest one of its
    # ports, so another one when a guest is started, and the other host does not reach it for a while.
    on "$name" "ip link set lo up
        ip link add br0 address 02:00:00:00:00:0${address##*.} type bridge && ip address add $address/24 dev br0 && ip link set br0 up
        rm -f /dev/kvm && chmod 666 /dev/net/tun && addgroup --quiet --system kvm
        mkdir -p /etc/guests /srv/guests
        cp /srv/shared/hikkoshi_*.deb /root
        cp /srv/shared/vmlinuz /srv/guests/vmlinuz && cp /srv/shared/initramfs.cpio /srv/guests/initrd"
}

# start_hosts NAME…: the first one has the address 10.0.0.1, and so on. Root of each can log in on the
# others by ssh.
start_hosts() {
    local one other number=0
    names=("$@")
    for one; do
        number=$((number + 1))
        start_host "$one" "10.0.0.$number"
        # The others are connected to the first one's bridge.
        ((number > 1)) || continue
        ip link add "${link}a$number" type veth peer name "${link}b$number"
        connect "$1" "${link}a$number"
        connect "$one" "${link}b$number"
    done
    for one; do on "$one" "systemctl start ssh"; done
    for one; do known_to "$one" "$@"; done
}

# Puts an end of a link into a host's bridge.
connect() {
    ip link set "$2" netns "${host[$1]}"
    on "$1" "ip link set $2 master br0 up"
}

# known_to NAME HOST…: root of NAME can log in on these hosts.
known_to() {
    local name=$1 other
    on "$name" "mkdir -p -m 700 /root/.ssh && ssh-keygen -q -t ed25519 -N '' -f /root/.ssh/id_ed25519 &&
        cp /root/.ssh/id_ed25519.pub /srv/shared/key.pub"
    for other in "${@:2}"; do
        [[ $other != "$name" ]] || continue
        on "$other" 'mkdir -p -m 700 /root/.ssh && cat /srv/shared/key.pub >>/root/.ssh/authorized_keys
            cut -d " " -f 1,2 /etc/ssh/ssh_host_ed25519_key.pub >/srv/shared/host.pub'
        on "$name" "echo $other \$(cat /srv/shared/host.pub) >>/root/.ssh/known_hosts"
    done
}

# The names of all hosts are those of start_hosts.
declare -a names=()
name_host() {
    local one lines='127.0.0.1 localhost' number=0
    for one in "${names[@]}"; do lines+="\n10.0.0.$((number += 1)) $one"; done
    on "$1" "hostname $1 && printf '$lines\n' >/etc/hosts"
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

# Waits for the command that runs beside the others, which must end with this status.
background_ends() {
    local status=0
    wait "$background" || status=$?
    background=
    ((status == $1)) || fail "the migration has ended with status $status instead of $1"
}

workload='console=ttyS0 quiet loglevel=1 panic=-1 no_timer_check mitigations=off cryptomgr.notests hk.workload=verify hk.mib=32 hk.rate=500 hk.every_ms=500'

# install_file TEXT: a file of the guide, where it belongs.
install_file() {
    local text=$1 where path one
    where=$(sed -nE '1,2s/^# (both|source|destination): (\/.*)$/\1/p' <<<"$text")
    path=$(sed -nE '1,2s/^# (both|source|destination): (\/.*)$/\2/p' <<<"$text")
    [[ $where && $path ]] || fail "a file of the guide does not say where it belongs: $text"
    [[ $where != both ]] || where='source destination'
    for one in $where; do
        # What the test guest does: it writes and checks 32 MiB of memory.
        [[ $path != *.qemu ]] || text=${text/console=ttyS0/$workload}
        printf '%s\n' "$text" >"$work/shared/file"
        on "$one" "mkdir -p '$(dirname "$path")' && cp /srv/shared/file '$path'"
        [[ $path != */systemd/* ]] || on "$one" 'systemctl daemon-reload'
    done
}

# read_guide FILE COMMAND: calls `FILE TEXT` for each file of the guide, and `COMMAND HOST TEXT` for each
# command, in order.
read_guide() {
    local kind='' text='' where='' command='' line
    while IFS= read -r line; do
        if [[ $line == '```'* && ! $kind ]]; then
            kind=${line#\`\`\`} text=''
            [[ $kind =~ ^(console|ini|sh|nft)$ ]] || fail "a block of the guide is of the kind '$kind'"
        elif [[ $line == '```' ]]; then
            case $kind in
            console)
                "$2" "$where" "$command"
                command=''
                ;;
            *) "$1" "${text%$'\n'}" ;;
            esac
            kind=''
        elif [[ $kind == console ]]; then
            if [[ $line =~ ^(source|destination|authority)\#\ (.*)$ ]]; then
                local next=("${BASH_REMATCH[@]}")
                [[ ! $command ]] || "$2" "$where" "$command"
                where=${next[1]} command=${next[2]}
            elif [[ $line == ' '* && $command == *\\ ]]; then
                command=${command%\\}${line#"${line%%[! ]*}"}
            else
                fail "a line of a console block is not a command: $line"
            fi
        elif [[ $kind ]]; then
            text+=$line$'\n'
        fi
    done <"$guide"
}
