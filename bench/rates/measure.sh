#!/usr/bin/env bash
# How many instructions software executes for each page that it makes dirty between two takes of a
# log: boots the Debian guest under QEMU's TCG with a clock that advances by one nanosecond an
# instruction (`-icount shift=0`), runs a workload in it, and measures its dirty rate for a minute.
# The guest's own clock then counts instructions. Prints ept/docs/rates.csv. Run as root, with jq:
#
#   make guest-debian build && bench/rates/measure.sh redis-set redis-get perl sort
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
build=$here/../../build
hikkoshi=${HIKKOSHI_BIN:-$here/../../target/release/hikkoshi}
command -v jq >/dev/null || { echo "jq is needed (Debian: apt install jq)" >&2; exit 1; }
folder=$(mktemp -d)
qemu=
trap '[[ -z $qemu ]] || kill "$qemu" || true; mountpoint -q "$folder/root" && umount "$folder/root"; rm -r "$folder"' EXIT

"$build/qemu-img/run" convert -O raw "$build/debian/disk.qcow2" "$folder/disk.raw"
mkdir "$folder/root"
mount -o loop "$folder/disk.raw" "$folder/root"
install -m 755 "$here/workload.sh" "$folder/root/usr/local/bin/rates"
units=$folder/root/etc/systemd/system
printf '[Service]\nExecStart=/usr/local/bin/rates\n' >"$units/rates.service"
ln -sf ../rates.service "$units/multi-user.target.wants/rates.service"
rm -f "$units/multi-user.target.wants/hikkoshi-workload.service"
umount "$folder/root"

# The host's time and the guest's, in seconds, when the guest prints its own the next time.
clocks() {
    local lines
    lines=$(grep -ac uptime "$serial")
    while [[ $(grep -ac uptime "$serial") == "$lines" ]]; do sleep 0.02; done
    echo "$(date +%s.%N) $(grep -a uptime "$serial" | tail -n 1 | tr -d '\r')"
}

echo "workload,millions of instructions between takes,instructions per page"
for workload; do
    serial=$folder/$workload.serial
    "$build/qemu-10.0/run" -machine pc -accel tcg -icount shift=0,sleep=off -m 1024 \
        -nodefaults -no-user-config -display none \
        -kernel "$build/kernel/vmlinuz" -initrd "$build/initramfs.cpio" \
        -append "console=ttyS0 quiet hk.root=/dev/vda rates=$workload mitigations=off" \
        -drive "file=$folder/disk.raw,if=virtio,format=raw,snapshot=on" \
        -serial "file:$serial" -qmp "unix:$folder/qmp,server=on,wait=off" &
    qemu=$!
    until grep -aq ^begin "$serial" 2>/dev/null; do
        kill -0 "$qemu" || { echo "$workload: QEMU has ended" >&2; exit 1; }
        ! grep -as "^no such workload" "$serial" >&2 || exit 1
        sleep 0.2
    done
    sleep 10
    read -r began _ before idle_before < <(clocks)
    "$hikkoshi" dirty-rate --qmp "$folder/qmp" --seconds 60 --interval 200ms --max-cost 100 \
        --json "$folder/rate.json" >&2
    read -r ended _ after idle_after < <(clocks)
    # Instructions per second of the host's time.
    jq -r --arg workload "$workload" --argjson began "$began" --argjson ended "$ended" \
        --argjson ran "$(jq -n "($after - $before) - ($idle_after - $idle_before)")" '
        ($ran * 1e9 / ($ended - $began)) as $rate
        | .total.working_sets[] | select(.mean_pages > 0)
        | (.mean_window_ms / 1000 * $rate) as $instructions
        | [$workload, ($instructions / 1e6 | round), ($instructions / .mean_pages | round)]
        | @csv' "$folder/rate.json" | tr -d '"'
    kill "$qemu"
    wait "$qemu" || true
    qemu=
    rm -f "$folder/qmp"
done
