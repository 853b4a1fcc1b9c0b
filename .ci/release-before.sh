#!/usr/bin/env bash
# Builds the release before this one and prints the path of its program: the newest tag v* before
# HEAD, or the revision that is given. Fails with status 3 if there is none.
#
# release-before.sh [REVISION]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
revision=${1:-}
if [[ $(git rev-parse --is-shallow-repository) == true ]]; then
    echo "$0: the clone is shallow, so its releases are not known: run \`git fetch --unshallow --tags\`" >&2
    exit 1
fi
if [[ -z $revision ]]; then
    here=$(git tag --points-at HEAD --list 'v*')
    revision=$(git tag --merged HEAD --list 'v*' --sort=-version:refname |
        grep --invert-match --line-regexp --fixed-strings -- "${here:-no tag}" | head -n 1) || true
fi
[[ -n $revision ]] || exit 3
folder=$PWD/build/release-before
rm -rf "$folder/tree"
mkdir -p "$folder/tree"
git archive "$revision" | tar -x -C "$folder/tree"
(cd "$folder/tree" && CARGO_TARGET_DIR=$folder/target cargo build --locked --release --package hikkoshi >&2)
echo "$folder/target/release/hikkoshi"
