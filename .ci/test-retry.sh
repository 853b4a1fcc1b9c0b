#!/usr/bin/env bash
# Tests .ci/note-failures.sh and .ci/retry.sh with programs that fail as often as they are told.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

fail() {
    echo "test-retry.sh: $1" >&2
    cat "$work/output" >&2
    exit 1
}

# A test program like libtest's. For each of its tests, TESTS has NAME=N: it fails N times; and
# NAME=grave or panic: it fails once, with a wrong page, or because a thread of an engine panics.
mkdir -p "$work/project/.ci"
cp "$here"/{note-failures,retry}.sh "$work/project/.ci"
cat >"$work/e2e-0123456789abcdef" <<'EOS'
#!/usr/bin/env bash
only=
[[ ${1:-} != --exact ]] || only=$2
sections= names=
for test in $TESTS; do
    name=${test%=*} times=${test#*=}
    [[ -z $only || $only == "$name" ]] || continue
    runs=$(cat "$STATE/$name" 2>/dev/null || echo 0)
    echo "$((runs + 1))" >"$STATE/$name"
    text="it failed"
    [[ $times != grave ]] || { times=1 text="NEVER RETRIED: a wrong page: 7"; }
    [[ $times != panic ]] || { times=1 text="thread 'dst-urgent' (7) panicked at a.rs:1:"; }
    ((runs < times)) || { echo "test $name ... ok"; continue; }
    echo "test $name ... FAILED"
    sections+="---- $name stdout ----"$'\n'"$text"$'\n\n'
    names+="    $name"$'\n'
done
[[ $names ]] || { echo "test result: ok."; exit 0; }
printf '\nfailures:\n\n%s\nfailures:\n%s\ntest result: FAILED. 0 passed\n' "$sections" "$names"
exit 101
EOS
chmod +x "$work/e2e-0123456789abcdef"

# expect STATUS LINE TESTS: what the two scripts make of it.
expect() {
    local wanted=$1 line=$2 status=0
    rm -rf "$work/state" "$work/project/build"
    mkdir -p "$work/state"
    export STATE=$work/state TESTS=$3
    {
        "$work/project/.ci/note-failures.sh" "$work/e2e-0123456789abcdef" --test-threads=1 &&
            "$work/project/.ci/retry.sh"
    } &>"$work/output" || status=$?
    [[ $status == "$wanted" ]] || fail "$TESTS: status $status, not $wanted"
    [[ -z $line ]] || grep -q -- "^$line" "$work/output" || fail "$TESTS: no line '$line'"
}

expect 0 "" "a=0 b=0"
expect 0 "FLAKY: e2e b: passed when it ran again (attempt 1)" "a=0 b=1 c=0"
expect 0 "FLAKY: e2e b: passed when it ran again (attempt 2)" "b=2"
expect 1 "FAILED: e2e b: failed three times" "a=0 b=3"
expect 1 "retry.sh: 2 tests are flaky" "a=1 b=1"
expect 1 "FAILED: e2e b: a wrong page: 7" "b=grave"
expect 1 "FAILED: e2e b: thread 'dst-urgent' (7) panicked at" "b=panic"
[[ $(cat "$work/state/b") == 1 ]] || fail "a wrong page was tried again"
# A flaky test beside a grave one: its section of the output is its own.
expect 1 "FLAKY: e2e a: " "a=1 b=grave"
[[ $(grep -c "^FAILED: " "$work/output") == 1 ]] || fail "the wrong page was counted for both"

# A program that has crashed has no list of what failed.
printf '#!/bin/sh\necho "test a ... FAILED"\nkill -SEGV $$\n' >"$work/crash-0"
chmod +x "$work/crash-0"
rm -rf "$work/project/build"
status=0
"$work/project/.ci/note-failures.sh" "$work/crash-0" &>"$work/output" || status=$?
((status == 139)) || fail "a crashed test program: status $status"
