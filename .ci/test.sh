#!/usr/bin/env bash
# Runs all tests; `make test` runs lint first.
#
# Most tests of the crates wait for a peer or a timeout. Four groups of them run at once
# (.ci/test-group.sh). At the same time, with low priority, the guests for the last group are made,
# and then the loom models of the page bitmap are checked (`make test-loom` also checks those of the
# engine, its links and the second-stage tables). The tests that move real guests are the last group, because each guest keeps
# a processor busy.
#
# They run the program that was built with the tests: what does something for each page is
# optimized, arithmetic is checked, and a second build of everything would take minutes.
#
# The output of each part is written to build/tests, and printed when the part has ended. Tests that
# failed run again at the end, alone (.ci/retry.sh).
set -euo pipefail
set -m # Each part is a process group, so that all of it can be ended.
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# The tests of libvirt domains, and the program that they run, need libvirt.
libvirt=$PWD/build/libvirt/root/usr/lib/x86_64-linux-gnu
export PKG_CONFIG_PATH=$libvirt/pkgconfig LD_LIBRARY_PATH=$libvirt
features=(--features hikkoshi-libvirt/libvirt)

logs=build/tests
rm -rf "$logs"
mkdir -p "$logs"
# The processes of the parts that run, by name, and the names of those that failed.
declare -A parts
failed=()

start() {
    local name=$1
    shift
    timed "$name" "$@" &>"$logs/$name.log" </dev/null &
    parts[$name]=$!
}

# timed NAME COMMAND...: prints how long it took, and how much processor time.
timed() {
    local TIMEFORMAT="test.sh: $1 took %0R s, with %0U + %0S s of processor time"
    time ("${@:2}")
}

finish() {
    local name=$1
    wait "${parts[$name]}" || failed+=("$name")
    unset "parts[$name]"
    cat "$logs/$name.log"
}

end_all() {
    local process
    for process in "${parts[@]}"; do
        kill -- "-$process" 2>/dev/null || true
    done
}
trap end_all EXIT

# The names and reasons come last, because the output before them is long.
stop_if_failed() {
    ((${#failed[@]} == 0)) || {
        grep --no-filename -A 4 -E "^test .* FAILED$| panicked at " "$logs"/*.log >&2 || true
        echo "test.sh: failed: ${failed[*]}" >&2
        exit 1
    }
}

# What the tests with guests need.
guest_images() {
    renice --priority 19 --pid "$BASHPID" >/dev/null
    # All at once, so that the package lists are read once.
    setup/setup.sh ovmf libvirt-12.9 pacemaker chromium prometheus
    make --no-print-directory guest-images browser
}

loom() {
    chrt --idle --pid 0 "$BASHPID"
    tail --pid "${parts[guest_images]}" -f /dev/null
    make --no-print-directory test-loom-pages
}

# Runs one group. Cargo is always called for the whole workspace: for another selection of packages,
# the dependencies have other features, and cargo builds them again.
group() {
    TEST_GROUP=$1 CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER=$PWD/.ci/test-group.sh \
        cargo test --locked --workspace "${features[@]}" --tests --no-fail-fast -- "${@:2}"
}

start guest_images guest_images
start loom loom
cargo test --locked --workspace "${features[@]}" --no-run

# One test at a time: each test of the engine is two hosts with a dozen threads and a guest.
start engine group engine --test-threads=1
start waiting group waiting --test-threads=4
start qemu group qemu --test-threads=1
start others group others --test-threads=1
start ept env --chdir ept CARGO_TARGET_DIR=../target cargo test --locked --workspace
start documentation cargo test --locked --workspace "${features[@]}" --doc
for part in engine waiting qemu others ept documentation guest_images; do
    finish $part
done
stop_if_failed

export HIKKOSHI_BIN=$PWD/target/debug/hikkoshi
# Half as many again as there are processors: some wait for a timeout. More do not gain anything,
# because the emulated guests keep all processors busy. The laboratory's own tests mostly wait.
start lab group lab --test-threads=1
timed guests group guests --test-threads="$(($(nproc) * 3 / 2))" 2>&1 | tee "$logs/guests.log" ||
    failed+=(guests)
finish lab
finish loom
grep --no-filename "^test.sh: .* took" "$logs"/*.log
.ci/retry.sh || failed+=("tests, even alone (listed above)")
stop_if_failed
