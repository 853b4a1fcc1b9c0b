#!/usr/bin/env bash
# The kept fuzz inputs: fuzz/corpora has one tar archive per fuzz target, and their checksums.
#
#   fuzz/corpus.sh unpack TARGET FOLDER   checks the target's archive and unpacks it into FOLDER
#   fuzz/corpus.sh add TARGET FILE...     adds inputs to the target's archive, under their file names
#
# The archives are not compressed: git compresses them, and stores an added input as a small
# difference. The same inputs always make the same archive.
set -euo pipefail
fuzz=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
corpora=$fuzz/corpora

fail() {
    echo "corpus.sh: $*" >&2
    exit 1
}

unpack() {
    local target=$1 folder=$2
    (cd "$corpora" && grep -F "  $target.tar" SHA256SUMS | sha256sum --check --quiet) ||
        fail "$corpora/$target.tar is missing or damaged"
    tar -xf "$corpora/$target.tar" -C "$folder"
}

add() {
    local target=$1 folder file name
    shift
    (($#)) || fail "no input given"
    folder=$(mktemp -d)
    # shellcheck disable=SC2064 # $folder is expanded now: it is local.
    trap "rm -r '$folder'" EXIT
    # Only a new fuzz target has no archive yet.
    if [[ -e $corpora/$target.tar ]] || grep -qF "  $target.tar" "$corpora/SHA256SUMS"; then
        unpack "$target" "$folder"
    fi
    for file; do
        name=$(basename "$file")
        # libFuzzer names an input after its content.
        if cmp -s "$folder/$name" "$file"; then
            echo "$file: already there"
        elif [[ -e $folder/$name ]]; then
            fail "$file: another input has this name; rename the file"
        else
            cp --no-preserve=all "$file" "$folder/$name"
        fi
    done
    find "$folder" -type f -printf '%f\0' | LC_ALL=C sort -z |
        tar --create --file "$corpora/$target.tar" --directory "$folder" --format ustar \
            --blocking-factor 1 --mode 0644 --mtime @0 --owner 0 --group 0 --numeric-owner \
            --null --files-from -
    cd "$corpora"
    {
        grep -vF "  $target.tar" SHA256SUMS || true
        sha256sum "$target.tar"
    } | LC_ALL=C sort -k 2 >SHA256SUMS.new
    mv SHA256SUMS.new SHA256SUMS
    echo "$target.tar: $(tar -tf "$target.tar" | wc -l) inputs"
}

case ${1-} in
unpack | add)
    (($# >= 3)) || fail "$1 needs a target and a path"
    [[ -f $fuzz/fuzz_targets/$2.rs ]] || fail "there is no fuzz target $2"
    "$@"
    ;;
*) fail "known commands are unpack and add" ;;
esac
