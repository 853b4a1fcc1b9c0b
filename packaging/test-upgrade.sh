#!/usr/bin/env bash
# Moves guests between the program of an earlier revision and today's: `test-upgrade.sh REVISION`;
# `make test-upgrade` runs it. The earlier program is built in a worktree, build/upgrade/source.
#
# The moves are those of tests/tests/e2e/upgrade.rs: each revision is the source and the destination,
# in all modes, and today's program resumes what the earlier one began.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
revision=$(git rev-parse --verify "$1^{commit}")
folder=$PWD/build/upgrade

mkdir -p "$folder"
if [[ ! -x $folder/$revision/hikkoshi ]]; then
    git worktree remove --force "$folder/source" 2>/dev/null || true
    git worktree add --force --detach "$folder/source" "$revision"
    # Its own target folder: cargo would build what both have again and again.
    (cd "$folder/source" && CARGO_TARGET_DIR=$folder/target cargo build --locked --package hikkoshi)
    git worktree remove --force "$folder/source"
    mkdir -p "$folder/$revision"
    cp "$folder/target/debug/hikkoshi" "$folder/$revision"
fi
cargo build --locked --package hikkoshi
echo "test-upgrade: $(git log -1 --format='%h of %cs, %s' "$revision")"
HIKKOSHI_EARLIER=$folder/$revision/hikkoshi HIKKOSHI_BIN=${HIKKOSHI_BIN:-$PWD/target/debug/hikkoshi} \
    cargo test --locked --package hikkoshi-tests --test e2e -- --ignored upgrade::
