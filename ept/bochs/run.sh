#!/usr/bin/env bash
# Builds the hypervisor, makes a disk image of it, and replaces itself by Bochs (exec), which runs
# it. The hypervisor's output is on standard output, among that of Bochs; Bochs's log is bochs.log
# in the directory that the first line names.
#
#   run.sh            build and run
#   run.sh build      build only
#   BOCHS=DIRECTORY   where setup/setup.sh installed Bochs (build/bochs of the project)
#   OUT=DIRECTORY     for image, configuration and log (default: run, in the target directory)
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
bochs=${BOCHS:-$(cd "$here/../.." && pwd)/build/bochs}

if [[ ! -x $bochs/run ]]; then
    echo "hypervisor: no Bochs in $bochs; install it with \`make setup\`" >&2
    exit 2
fi

for tool in cargo objcopy; do
    command -v "$tool" >/dev/null || { echo "hypervisor: $tool is not installed" >&2; exit 2; }
done

# Flags for programs of the host would break this one.
unset RUSTFLAGS CARGO_ENCODED_RUSTFLAGS CARGO_BUILD_TARGET
target=${CARGO_TARGET_DIR:-$here/target}
mkdir -p "$target"
target=$(cd "$target" && pwd)/bochs
(cd "$here" && CARGO_TARGET_DIR=$target cargo build --locked --release --quiet)
elf=$target/x86_64-unknown-linux-gnu/release/hypervisor

[[ ${1:-run} != build ]] || exit 0

out=${OUT:-$target/run}
mkdir -p "$out"
out=$(cd "$out" && pwd)
# The loaded part of the file starts at the disk's first byte; the rest of the disk is empty.
objcopy --output-target binary --only-section .image "$elf" "$out/disk"
truncate --size 10321920 "$out/disk" # 20 cylinders, 16 heads, 63 sectors
# Files of an earlier run; the lock remains if that run was killed.
rm -f "$out/disk.lock" "$out/bochs.log"

cat >"$out/bochsrc" <<RC
# No window: do not wait for a viewer.
display_library: rfb, options="timeout=0"
sound: driver=dummy, waveoutdrv=dummy, waveindrv=dummy, midioutdrv=dummy
speaker: enabled=0
romimage: file=$bochs/bios
vgaromimage: file=$bochs/vgabios
memory: guest=192, host=192
# Secondary VMX controls with PML, EPT with accessed and dirty bits. One instruction is one tick of
# the time-stamp counter, so the counter counts instructions.
cpu: model=corei7_icelake_u, count=1, ips=10000000, reset_on_triple_fault=0
clock: sync=none, time0=utc
ata0: enabled=1, ioaddr1=0x1f0, ioaddr2=0x3f0, irq=14
ata0-master: type=disk, path=$out/disk, mode=flat, cylinders=20, heads=16, spt=63
boot: disk
port_e9_hack: enabled=1
log: $out/bochs.log
panic: action=fatal
# Bochs reports every EPT violation as an error; here they are expected.
error: action=ignore
info: action=report
debug: action=ignore
RC
# This Bochs has its debugger built in, which waits for commands: continue, then quit.
printf 'c\nquit\n' >"$out/commands"

echo "hypervisor: Bochs's files are in $out"
exec "$bochs/run" -q -f "$out/bochsrc" -rc "$out/commands" </dev/null
