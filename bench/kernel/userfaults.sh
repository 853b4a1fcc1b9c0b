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
# QEMU maps its RAM right after it starts.
range=
until [[ -n $range ]]; do
    sleep 0.2
    range=$(awk '/destination-ram/ { split($1, ends, "-"); print ends[1], ends[2]; exit }' "/proc/$pid/maps")
done
read -r start end <<<"$range"

"$bpftrace" "$here/userfaults.bt" "$pid" "$((16#$start))" "$((16#$end))" &
tracer=$!
while kill -0 "$pid" 2>/dev/null; do sleep 0.2; done
kill -INT "$tracer"
wait "$tracer"
