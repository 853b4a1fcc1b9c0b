#!/usr/bin/env bash
# Waits for the next destination of the bench, and tells how long its guest's threads waited for
# missing pages by the kernel's clock, when it is gone. As root, in another terminal:
#
#   bench/kernel/userfaults.sh
#   make bench ARGS="--rounds 1 --retries 0 --only 1gbit/busy/hikkoshi-postcopy"
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
bpftrace=${BPFTRACE:-$here/../../build/bpftrace/run}
[[ -x $bpftrace ]] || { echo "there is no bpftrace at $bpftrace; run setup/setup.sh bpftrace" >&2; exit 1; }
# bpftrace looks for the tracepoints there.
[[ -e /sys/kernel/tracing/events ]] || mount -t tracefs tracefs /sys/kernel/tracing

echo "waiting for a QEMU that is called destination" >&2
pid=
until [[ -n $pid ]]; do
    sleep 0.2
    pid=$(pgrep -f -o -- 'qemu-system-x86_64 .*-name destination ') || true
done
# It maps its RAM within its first moments.
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
