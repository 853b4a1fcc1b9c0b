#!/usr/bin/env bash
# Waits for the next destination QEMU of the bench. When it has ended, prints how long its guest's
# threads waited for missing pages, by the kernel's clock. Run as root, in another terminal:
#
#   bench/kernel/userfaults.sh
#   make bench ARGS="--rounds 1 --retries 0 --only 1gbit/busy/hikkoshi-postcopy"
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
bpftrace=${BPFTRACE:-$here/../../build/bpftrace/run}
[[ -x $bpftrace ]] || { echo "no bpftrace at $bpftrace; run setup/setup.sh bpftrace" >&2; exit 1; }
# bpftrace finds the tracepoints there.
[[ -e /sys/kernel/tracing/events ]] || mount -t tracefs tracefs /sys/kernel/tracing

echo "waiting for a QEMU named destination" >&2
pid=
until [[ -n $pid ]]; do
    sleep 0.2
    pid=$(pgrep -f -o -- 'qemu-system-x86_64 .*-name destination ') || true
done
# QEMU maps its RAM right after it starts: its largest mapping, of 1 GiB or more.
start=0 end=0
until ((end - start >= 1 << 30)); do
    sleep 0.2
    [[ -r /proc/$pid/maps ]] || { echo "QEMU has ended, without a mapping of 1 GiB" >&2; exit 1; }
    while IFS='- ' read -r from to _; do
        if ((16#$to - 16#$from > end - start)); then
            start=$((16#$from)) end=$((16#$to))
        fi
    done <"/proc/$pid/maps"
done

"$bpftrace" "$here/userfaults.bt" "$pid" "$start" "$end" &
tracer=$!
while kill -0 "$pid" 2>/dev/null; do sleep 0.2; done
kill -INT "$tracer"
wait "$tracer"
