#!/usr/bin/env bash
# Decides about the tests that failed (.ci/note-failures.sh), when nothing else runs: `retry.sh
# FOLDER`, by default build/tests/failed.
#
# Each is run again, alone, up to two times. One that passes then is FLAKY: it is listed at the end,
# and its first output is kept in its folder. One flaky test is forgiven, two are a failure. Output
# with the line `NEVER RETRIED` (guest/lab/src/never_retried.rs) is never forgiven: a wrong page, a
# missed write, a guest that ran twice, an engine that crashed. Nor is a panic in one of the engine's
# threads.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
folder=${1:-build/tests/failed}
flaky=()
failed=()

# Prints why the output of a test is not forgiven.
grave() {
    grep --no-filename --max-count=1 --extended-regexp \
        "NEVER RETRIED: |^thread '(src|dst|hk|dmn|front)-.* panicked at " "$@"
}

for test in "$folder"/*/; do
    [[ -e $test/name ]] || continue
    name=$(<"$test/name")
    if why=$(grave "$test/output"); then
        failed+=("$name: ${why#*NEVER RETRIED: }")
        continue
    fi
    result=
    for attempt in 1 2; do
        echo "retry.sh: $name failed; it runs again, alone ($attempt of 2)"
        if bash "$test/again" &>"$test/output-$attempt" </dev/null; then result=passed; else result=failed; fi
        cat "$test/output-$attempt"
        if why=$(grave "$test/output-$attempt"); then
            failed+=("$name: ${why#*NEVER RETRIED: }")
            result=grave
        fi
        [[ $result == failed ]] || break
    done
    case $result in
    passed) flaky+=("$name: passed when it ran again (attempt $attempt); its first output: $test""output") ;;
    failed) failed+=("$name: failed three times") ;;
    esac
done

for name in "${flaky[@]}"; do echo "FLAKY: $name"; done
for name in "${failed[@]}"; do echo "FAILED: $name"; done
((${#failed[@]} == 0)) || exit 1
((${#flaky[@]} < 2)) || {
    echo "retry.sh: ${#flaky[@]} tests are flaky; one would have been forgiven" >&2
    exit 1
}
