#!/usr/bin/env bash
# Runs a test program under another kernel, in an emulated machine: cargo's runner for
# `make test-kernels`. HIKKOSHI_KERNEL is a folder with `vmlinuz`, and `modules` if there is to be
# swap space (those of guest/initramfs/modules).
#
# usage: HIKKOSHI_KERNEL=build/kernels/6.18 run.sh PROGRAM [ARGUMENT...]
set -euo pipefail

here=$(CDPATH="" cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
project=$here/../..
kernel=${HIKKOSHI_KERNEL:?a folder with a kernel}
program=$1
shift

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
root=$work/root
mkdir -p "$root"/{bin,dev,lib64,modules,proc,sys,test,tmp}
cp "$project/build/busybox/busybox" "$root/bin/busybox"
cp "$here/init" "$root/init"
# Debug information would fill the machine's memory.
strip --strip-debug -o "$root/test/program" "$program"
# With the host's libraries: what is tested is the kernel.
ldd "$program" | sed -nE 's/.*(=> |^\t)(\/[^ ]+) .*/\2/p' | while read -r library; do
    mkdir -p "$root$(dirname "$library")"
    cp --dereference "$library" "$root$library"
done
# The folder of files that the tests make, which is compiled into them.
scratch=$(CDPATH="" cd -- "$project" && pwd)/target/tmp
mkdir -p "$root$scratch"
{
    printf 'export RUST_BACKTRACE=0 TMPDIR=/tmp HIKKOSHI_KERNEL_NAME=%q\n' "$(basename "$kernel")"
} >"$root/test/environment"
{
    printf '#!/bin/busybox sh\nexec /test/program'
    printf ' %q' "$@"
    echo
} >"$root/test/run"
chmod +x "$root/init" "$root/test/run"
disk=()
if [[ -e $kernel/modules ]]; then
    while read -r module; do cp "$kernel/modules/$module" "$root/modules/"; done <"$project/guest/initramfs/modules"
    cp "$project/guest/initramfs/modules" "$root/modules/list"
    truncate --size 256M "$work/swap"
    disk=(-drive "file=$work/swap,format=raw,if=virtio")
fi
(cd "$root" && find . | cpio --quiet --owner=0:0 -H newc -o) >"$work/initramfs.cpio"

# The time is a limit for a machine that hangs.
timeout 900 "$project/build/qemu-10.0/run" -machine q35 -cpu max -smp 2 -m 1G -display none -nodefaults \
    -no-reboot -kernel "$kernel/vmlinuz" -initrd "$work/initramfs.cpio" "${disk[@]}" -serial stdio \
    -append "console=ttyS0 quiet panic=-1" </dev/null | stdbuf --output=L tr -d '\r' | tee "$work/console" |
    grep --line-buffered -avE "SeaBIOS|Booting from|reboot: Power down"
grep -aqx "status: 0" "$work/console"
