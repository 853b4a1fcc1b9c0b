#!/usr/bin/env bash
# note-failures.sh PROGRAM ARGUMENT...: runs a test program. Each test that fails gets a folder in
# build/tests/failed, for .ci/retry.sh: its name, its output, and how it is run again. The status is
# that of the program only if what failed cannot be run again.
set -euo pipefail
failed=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)/build/tests/failed
mkdir -p "$failed"
log=$(mktemp "$failed/.log.XXXXXX")
trap 'rm -f "$log"' EXIT

status=0
"$@" 2>&1 | tee "$log" || status=$?
((status)) || exit 0

# libtest ends with a list of what failed. A program that has crashed has none.
mapfile -t names < <(awk '
    /^failures:$/ { listed = ""; next }
    /^    / { listed = listed substr($0, 5) "\n"; next }
    /^test result: FAILED/ { printf "%s", listed }' "$log")
((${#names[@]})) || exit "$status"
for name in "${names[@]}"; do
    folder=$(mktemp -d "$failed/$(basename "$1")-XXXXXX")
    echo "$(basename "${1%-*}") $name" >"$folder/name"
    {
        export -p
        printf 'cd %q\nexec %q --exact %q --include-ignored --nocapture\n' "$PWD" "$1" "$name"
    } >"$folder/again"
    # What libtest captured of the test, and lines with its name that it did not capture.
    awk -v name="$name" '
        $0 == "---- " name " stdout ----" { its = 1 }
        its && /^---- .* stdout ----$/ && $0 != "---- " name " stdout ----" { its = 0 }
        /^failures:$/ { its = 0 }
        its || index($0, "    " name ": ") == 1' "$log" >"$folder/output"
done
