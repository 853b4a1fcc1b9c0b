#!/usr/bin/env bash
# Checks that each end-to-end test that CI leaves out is run by the target that its `#[ignore]`
# names: `#[ignore = "…: make TARGET"]`.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
failed=0

# recipe TARGET: its lines, and those of the scripts that it runs.
recipe() {
    local lines
    lines=$(awk -v target="$1" '
        index($0, target ":") == 1 { its = 1; next }
        /^[^\t#]/ || /^$/ { its = 0 }
        its' Makefile)
    printf '%s\n' "$lines"
    grep -oE 'packaging/[a-z-]+\.sh' <<<"$lines" | xargs -r cat
}

# filters TARGET PROGRAM: names of the tests of this program that it runs, ignored ones as well.
filters() {
    recipe "$1" | awk -v program=" --test $2 " '
        index($0, program) && /--(include-)?ignored/ {
            # Without a name all of them.
            if (!/ -- [a-z]/) print "::"
            sub(/.* -- /, "")
            for (word = 1; word <= NF; word++) {
                if ($word == "--skip") word++
                else if ($word !~ /^--/) print $word
            }
        }'
}

# ignored PROGRAM: each as FILE:LINE MODULE TEST REASON. A test in a module within its file has that
# name, too.
ignored() {
    local files tests=tests/tests/$1
    mapfile -d '' files < <(find "$tests" -name '*.rs' ! -name main.rs -print0 | sort -z)
    awk -v folder="$tests/" '
        FNR == 1 {
            module = substr(FILENAME, length(folder) + 1)
            sub(/(\/mod)?\.rs$/, "", module)
            gsub("/", "::", module)
        }
        /^ *#\[ignore/ { reason = $0; line = FNR }
        reason && /fn [a-z0-9_]+\(/ {
            name = $0
            sub(/.*fn /, "", name)
            sub(/\(.*/, "", name)
            print FILENAME ":" line, module "::" name, reason
            reason = ""
        }' "${files[@]}"
}

for program in e2e cluster; do
    while read -r place name reason; do
        if [[ ! $reason =~ make\ ([a-z-]+) ]]; then
            echo "$place: the reason names no target: $reason" >&2
            failed=1
            continue
        fi
        target=${BASH_REMATCH[1]}
        runs=0
        while read -r filter; do
            [[ $name != *"$filter"* ]] || runs=1
        done < <(filters "$target" $program)
        ((runs)) || {
            echo "$place: make $target does not run $name" >&2
            failed=1
        }
    done < <(ignored $program)
done
exit "$failed"
