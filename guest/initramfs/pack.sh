#!/bin/sh
# Packs the guest's initramfs: busybox, the modules of a list, those for VLANs, the workload, and init.
# The output is reproducible: names are sorted, owners and times are fixed.
#
# usage: pack.sh BUSYBOX MODULES_FOLDER LIST WORKLOAD OUTPUT
set -eu

busybox=$1 modules=$2 list=$3 workload=$4 output=$5
here=$(CDPATH="" cd -- "$(dirname -- "$0")" && pwd)
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT

mkdir -p "$root/bin" "$root/modules"
cp "$busybox" "$root/bin/busybox"
cat "$list" "$here/modules-vlan" | while read -r module; do
    cp "$modules/$module" "$root/modules/"
done
cp "$list" "$root/modules/list"
cp "$here/modules-vlan" "$root/modules/list-vlan"
cp "$workload" "$root/workload"
cp "$here/init" "$root/init"
chmod 755 "$root/init" "$root/workload" "$root/bin/busybox"
chmod 644 "$root"/modules/*
chmod 755 "$root" "$root/bin" "$root/modules"
find "$root" -exec touch -h -d @0 {} +

# Not compressed: an emulated processor decompresses more slowly than the host reads.
(cd "$root" && find . | LC_ALL=C sort | cpio --quiet --reproducible --owner=0:0 -H newc -o) >"$output.new"
# QEMU puts it at the end of the guest's memory, beginning at a page. There a microvm's firmware puts
# the ACPI tables, so most of the last page stays free.
size=$(stat -c %s "$output.new")
truncate -s $(((size + 3583) / 4096 * 4096 + 512)) "$output.new"
mv "$output.new" "$output"
