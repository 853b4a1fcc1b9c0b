#!/usr/bin/env bash
# Moves guests between this revision's program and others: `test-upgrade.sh REVISION`; `make
# test-upgrade` runs it. The others are built in a worktree, build/upgrade/source:
#
#   earlier  REVISION
#   later    this revision, with one more version of the protocol, and one more capability
#   apart    this revision, with that version only
#
# The moves are those of tests/tests/e2e/modes/upgrade.rs: each program is the source and the destination,
# in all modes, and today's program resumes what the earlier one began. `apart` moves nothing.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
earlier=$(git rev-parse --verify "$1^{commit}")
now=$(git rev-parse --verify HEAD)
folder=$PWD/build/upgrade
versions=crates/wire/src/negotiation/versions.rs

# Builds the program of a revision into build/upgrade/NAME, after changing its worktree by a command.
build() {
    local name=$1 revision=$2
    shift 2
    [[ ! -x $folder/$name/hikkoshi ]] || return 0
    git worktree remove --force "$folder/source" 2>/dev/null || true
    git worktree add --force --detach "$folder/source" "$revision"
    (cd "$folder/source" && "$@")
    # Its own target folder: cargo would build what both have again and again.
    (cd "$folder/source" && CARGO_TARGET_DIR=$folder/target cargo build --locked --package hikkoshi)
    git worktree remove --force "$folder/source"
    mkdir -p "$folder/$name"
    cp "$folder/target/debug/hikkoshi" "$folder/$name"
}

# Changes the supported versions in the worktree to `$1` to one more than now; `$1` may be `min`.
set_versions() {
    local min max
    read -r min max < <(sed -nE 's/.*SUPPORTED: Self = Self \{ min: ([0-9]+), max: ([0-9]+) \};.*/\1 \2/p' $versions)
    [[ $min && $max ]] || { echo "test-upgrade: no versions in $versions" >&2; exit 1; }
    max=$((max + 1))
    [[ $1 == min ]] || min=$max
    sed -i -E "s/(SUPPORTED: Self = Self) \{.*\};/\1 { min: $min, max: $max };/
        s/(pub const KNOWN: Self = Self)\(/\1(1 << 63 |/" $versions
    git diff --stat -- $versions
    (($(git diff --numstat -- $versions | cut -f 1) == 2)) || { echo "test-upgrade: $versions was not changed" >&2; exit 1; }
}

mkdir -p "$folder"
build "$earlier" "$earlier" true
build "$now-later" "$now" set_versions min
build "$now-apart" "$now" set_versions max
cargo build --locked --package hikkoshi
echo "test-upgrade: $(git log -1 --format='%h of %cs, %s' "$earlier")"
HIKKOSHI_EARLIER=$folder/$earlier/hikkoshi HIKKOSHI_LATER=$folder/$now-later/hikkoshi \
    HIKKOSHI_APART=$folder/$now-apart/hikkoshi HIKKOSHI_BIN=${HIKKOSHI_BIN:-$PWD/target/debug/hikkoshi} \
    cargo test --locked --package hikkoshi-tests --test e2e -- --ignored upgrade::
