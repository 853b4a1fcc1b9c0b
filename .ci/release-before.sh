#!/usr/bin/env bash
# The release before this one, for `make test-release-before`.
#
#   release-before.sh find             print the newest tag of a release before HEAD, or nothing
#   release-before.sh build REVISION   build that revision's program, and print its path
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

find_tag() {
    if [[ $(git rev-parse --is-shallow-repository) == true ]]; then
        echo "$0: the clone is shallow, so its releases are not known: run \`git fetch --unshallow --tags\`" >&2
        exit 1
    fi
    local tags here tag
    tags=$(git tag --merged HEAD --list 'v*' --sort=-version:refname)
    here=$(git tag --points-at HEAD)
    for tag in $tags; do
        # Not a release candidate, and not this one.
        if [[ $tag =~ ^v[0-9]+\.[0-9]+\.[0-9]+$ && " ${here//$'\n'/ } " != *" $tag "* ]]; then
            echo "$tag"
            return
        fi
    done
}

build() {
    # A folder for each revision: cargo looks at times, and files of an archive have that of their
    # commit.
    local folder
    folder=$PWD/build/release-before/$(git rev-parse --short=12 "$1^{commit}")
    mkdir -p "$folder/tree"
    git archive "$1" | tar -x -C "$folder/tree"
    (cd "$folder/tree" && CARGO_TARGET_DIR=$folder/target cargo build --locked --release --package hikkoshi >&2)
    echo "$folder/target/release/hikkoshi"
}

case ${1:-} in
find) find_tag ;;
build) build "$2" ;;
*)
    echo "usage: $0 find | build REVISION" >&2
    exit 2
    ;;
esac
