#!/usr/bin/env bash
# Moves domains of this host's libvirt to plain QEMUs: `moves.sh BUILD FOLDER PROGRAM TEST`.
# What the tests look at is in FOLDER.
set -euo pipefail
build=$1 folder=$2 program=$3 test=$4
cd "$folder"

# Persistent, with a disk that both sides use, as libvirt starts it by default.
start_domain() {
    cp "$build/kernel/vmlinuz" "$build/initramfs.cpio" .
    chmod a+rx .
    chmod a+r vmlinuz initramfs.cpio
    truncate --size 16M disk other
    cat >xml <<XML
<domain type='qemu'>
  <name>guest</name><uuid>6695eb01-f6a4-8304-79aa-97f2502e193f</uuid>
  <memory unit='MiB'>160</memory>
  <os>
    <type arch='x86_64' machine='pc-q35-7.2'>hvm</type>
    <kernel>$folder/vmlinuz</kernel><initrd>$folder/initramfs.cpio</initrd>
    <cmdline>console=ttyS0 quiet loglevel=1 panic=-1 hk.workload=verify hk.mib=24 hk.rate=20000 $1</cmdline>
  </os>
  <features><acpi/><apic/></features>
  <devices>
    <disk type='file' device='disk'>
      <driver name='qemu' type='raw' cache='none'/>
      <source file='$folder/disk'/><target dev='vda' bus='virtio'/>
    </disk>
    <controller type='usb' model='qemu-xhci'/>
    <serial type='file'><source path='$folder/console'/></serial>
    <memballoon model='none'/>
  </devices>
</domain>
XML
    virsh -q define xml
    virsh -q start guest
    wait_for grep -q "verify: ok" console
}

# A QEMU with the domain's machine that waits for it. Its console is console$1.
start_destination() {
    # An option a line, for sed.
    echo "exec env" >"destination$1.sh"
    virsh domxml-to-native qemu-argv xml | sed 's/ -/\n-/g' | sed \
        -e '/^-S$/d' -e '/"id":"masterKey0"/d' \
        -e "s|^-chardev socket,id=charmonitor,.*|-chardev socket,id=charmonitor,path=$folder/qmp$1,server=on,wait=off|" \
        -e "s|$folder/console|&$1|" | tr '\n' ' ' >>"destination$1.sh"
    echo "-incoming defer" >>"destination$1.sh"
    sed -i ':all; N; $!b all; s/\n/ /g' "destination$1.sh"
    bash "destination$1.sh" &>"qemu$1.log" &
    qemu=$!
    wait_for test -S "qmp$1"
    "$program" receive --qmp "qmp$1" --listen "unix:$folder/engine$1" &>"receive$1.log" &
    wait_for grep -q "a guest at" "receive$1.log"
}

# Starts `hikkoshi migrate` of the domain to destination $1, with more options.
start_migrate() {
    local number=$1
    shift
    "$program" migrate --domain guest "unix:$folder/engine$number" --progress json "$@" \
        &>"migrate$number.log" &
    migrate=$!
}

wait_for() {
    local tries
    for ((tries = 0; tries < 1200; tries++)); do
        if "$@"; then return; fi
        sleep 0.1
    done
    echo "timed out: $*" >&2
    tail -n 20 ./*.log console* >&2
    return 1
}

domain_is() {
    [[ $(virsh -q domstate guest) == "$1"* ]]
}

phase_is() {
    grep -q "\"phase\":\"$2\"" "migrate$1.log"
}

# Kills the daemon, and starts it again somewhat later.
restart_libvirtd() {
    kill -KILL "$(cat /run/libvirtd.pid)"
    sleep 0.5
    libvirtd --daemon
}

# The guest has checked its pages at destination $1 for some seconds, and none was wrong.
guest_is_healthy() {
    wait_for grep -q "verify: ok" "console$1"
    local lines
    lines=$(grep -c "verify: ok" "console$1")
    wait_for more_lines_than "$((lines + 1))" "console$1"
    ! grep "verify:" "console$1" | grep -v "bad=0 "
}

more_lines_than() {
    (($(grep -c "verify: ok" "$2") > $1))
}

finish() {
    local status=0
    wait "$migrate" || status=$?
    echo "$1: status $status"
    virsh -q list --all | sed "s/^/$1: /"
}

case $test in
failures)
    start_domain ""
    # The guest is paused for long when the engine and the daemon are killed.
    start_destination 1
    start_migrate 1 --mode precopy --max-downtime 60000 --bandwidth 8M
    wait_for domain_is paused
    kill -KILL "$(cat /run/libvirtd.pid)" "$migrate"
    sleep 0.5
    libvirtd --daemon
    wait_for domain_is running
    finish killed
    # A disk is plugged while memory is sent.
    start_destination 2
    start_migrate 2 --mode hybrid --bandwidth 16M
    wait_for phase_is 2 precopy
    virsh -q attach-disk guest "$folder/other" sdz --targetbus usb
    finish plugged
    virsh -q detach-disk guest sdz
    # The daemon is restarted in pre-copy and in post-copy.
    start_destination 3
    start_migrate 3 --mode hybrid --bandwidth 24M --undefine-source
    wait_for phase_is 3 precopy
    restart_libvirtd
    wait_for phase_is 3 postcopy
    restart_libvirtd
    finish moved
    guest_is_healthy 3
    ;;
modes)
    for mode in precopy postcopy; do
        start_domain ""
        start_destination "$mode"
        start_migrate "$mode" --mode "$mode"
        finish "$mode"
        guest_is_healthy "$mode"
        kill -KILL "$qemu"
        wait "$qemu" || true
        rm console
    done
    ;;
esac
