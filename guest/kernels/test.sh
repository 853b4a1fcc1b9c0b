#!/usr/bin/env bash
# Runs the dirty log's tests under each kernel of build/kernels that is named, and writes what the
# kernels do to build/kernels.md. They are emulated machines: minutes for each.
#
# usage: guest/kernels/test.sh 6.1 6.12...
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

log=build/kernels.log
: >"$log"
run() {
    CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER=$PWD/guest/kernels/run.sh \
        cargo test --locked --package hikkoshi-dirty "$@" --test-threads=1 2>&1 | tee -a "$log"
}
for kernel in "$@"; do
    export HIKKOSHI_KERNEL=$PWD/build/kernels/$kernel
    [[ -e $HIKKOSHI_KERNEL/vmlinuz ]] || {
        echo "test.sh: no kernel $kernel: setup/setup.sh only kernels" >&2
        exit 1
    }
    contract=(memory_passes tmpfs_passes)
    case $kernel in
    # It cannot track writes. The other kernels have soft-dirty bits, too, but no use for them.
    6.1)
        run --test soft_dirty -- --nocapture
        contract=()
        ;;
    6.12) contract+=(--skip hugetlb) ;;
    *) contract+=(hugetlb_passes) ;;
    esac
    run --test pagemap -- what_this_kernel_does "${contract[@]}"
done
sed -nE 's/^.*ROW (\|.*)$/\1/p' "$log" | tee build/kernels.md
