#!/usr/bin/env bash
# Runs every fuzz target for so many seconds (60; with 0 they are only built), so many at once (1),
# beginning with the corpora.
# What is new goes to crates/*/fuzz/found; an input that fails to crates/*/fuzz/artifacts, and ends
# the run.
#
# libFuzzer needs to see which code an input reaches. These are the flags that cargo-fuzz passes,
# without the sanitizers, which only a nightly compiler has.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

seconds=${1:-60}
at_once=${2:-1}
host=x86_64-unknown-linux-gnu
export CARGO_TARGET_DIR=$PWD/target/fuzz
export RUSTFLAGS="--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
-Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
-Cllvm-args=-sanitizer-coverage-trace-compares -Cdebug-assertions -Coverflow-checks \
-Ccodegen-units=1"

for fuzz in crates/*/fuzz; do
    # With --target the flags are not for build scripts.
    (cd "$fuzz" && cargo build --locked --release --target $host)
done
[[ $seconds != 0 ]] || exit 0

# One target, by the path of its source; what it says is shown when it has ended.
run() {
    local name fuzz kept log
    name=$(basename "$1" .rs)
    fuzz=${1%/fuzz_targets/*}
    log=$CARGO_TARGET_DIR/$name.log
    mkdir -p "$fuzz/found/$name" "$fuzz/artifacts"
    kept=("$fuzz/corpus/$name")
    [[ ! -d $fuzz/seeds/$name ]] || kept+=("$fuzz/seeds/$name")
    if "$CARGO_TARGET_DIR/$host/release/$name" "$fuzz/found/$name" "${kept[@]}" \
        -max_total_time="$seconds" -max_len=1024 -artifact_prefix="$fuzz/artifacts/$name-" \
        -print_final_stats=1 &>"$log"; then
        echo "$fuzz: $name: $(sed -n 's/^stat::number_of_executed_units: *//p' "$log") inputs, all well"
    else
        cat "$log"
        echo "$fuzz: $name: FAILED"
        exit 255 # Ends xargs.
    fi
}
export -f run
export seconds host
# shellcheck disable=SC2016 # The inner shell expands it.
printf '%s\0' crates/*/fuzz/fuzz_targets/*.rs |
    xargs -0 -n 1 -P "$at_once" bash -euo pipefail -c 'run "$1"' fuzz
