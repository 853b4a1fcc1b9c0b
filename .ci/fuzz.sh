#!/usr/bin/env bash
# Builds all fuzz targets, and runs each for so many seconds (60; 0 only builds them), so many at
# once (1).
#
# Each run starts with the kept inputs (fuzz/corpora). Inputs that reach new code are written to
# fuzz/found/TARGET. An input that fails is written to fuzz/artifacts, and ends all runs.
#
# libFuzzer has to see which code an input reaches. These are the flags that cargo-fuzz passes,
# without the sanitizers, which only a nightly compiler has.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

seconds=${1:-60}
at_once=${2:-1}
host=x86_64-unknown-linux-gnu
export CARGO_TARGET_DIR=$PWD/target/fuzz
export RUSTFLAGS="-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
-Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
-Cllvm-args=-sanitizer-coverage-trace-compares -Cdebug-assertions -Coverflow-checks \
-Ccodegen-units=1"

# With --target, build scripts and procedural macros are built without the flags.
cargo build --locked --release --target $host --manifest-path fuzz/Cargo.toml
[[ $seconds != 0 ]] || exit 0

# Runs the target named $1; shows its output if it fails.
run() {
    local name=$1 kept=$CARGO_TARGET_DIR/corpora/$1 log=$CARGO_TARGET_DIR/$1.log
    rm -rf "$kept"
    mkdir -p "$kept" "fuzz/found/$name" fuzz/artifacts
    fuzz/corpus.sh unpack "$name" "$kept" || exit 255 # Ends xargs.
    if "$CARGO_TARGET_DIR/$host/release/$name" "fuzz/found/$name" "$kept" \
        -max_total_time="$seconds" -max_len=1024 -artifact_prefix="fuzz/artifacts/$name-" \
        -print_final_stats=1 &>"$log"; then
        echo "$name: $(sed -n 's/^stat::number_of_executed_units: *//p' "$log") inputs, no failure"
    else
        cat "$log"
        echo "$name: FAILED"
        exit 255
    fi
}
export -f run
export seconds host
# shellcheck disable=SC2016 # The inner shell expands $1.
for target in fuzz/fuzz_targets/*.rs; do
    printf '%s\0' "$(basename "$target" .rs)"
done | xargs -0 -n 1 -P "$at_once" bash -euo pipefail -c 'run "$1"' fuzz
