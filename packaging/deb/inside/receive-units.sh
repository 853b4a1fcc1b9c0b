#!/usr/bin/env bash
# What the units in the folder $1 execute beside the engine, by the program in the folder $2: as systemd
# executes it, with a `systemctl` and a `hikkoshi` that only say what they were asked. hikkoshi, which
# is $3, must know the options that it is given.
set -euo pipefail
units=$1 programs=$2 hikkoshi=$3
work=$(mktemp -d)
trap 'rm -r "$work"' EXIT

fail() {
    printf 'receive-units: %s\n' "$*" >&2
    exit 1
}

mkdir -p "$work"/{bin,libexec/hikkoshi,run/units}
cat >"$work/bin/systemctl" <<'SH'
#!/bin/sh
case $* in
"show "*=Job" "*) cat "$JOB" ;;
"show "*=ExecMainStartTimestampMonotonic" "*) echo 5000000 ;;
"show "*=ExecMainExitTimestampMonotonic" "*) echo "${EXITED:-6000000}" ;;
*) echo "$*" ;;
esac
SH
printf '#!/bin/sh\necho "$*"\n' >"$work/bin/hikkoshi"
sed "s#/run/hikkoshi#$work/run#" "$programs/receive-unit" >"$work/libexec/hikkoshi/receive-unit"
chmod +x "$work"/bin/* "$work/libexec/hikkoshi/receive-unit"
link=$work/run/units/web journal=$work/run/destination-7-7.json

# UNIT SETTING: what the setting executes of this program.
line_of() {
    local line
    line=$(sed -nE "s#^$2=/usr(/local)?/libexec/hikkoshi/(receive-unit .*)\$#\2#p" "$units/hikkoshi-$1@.service")
    [[ $line ]] || fail "$1: no $2= of receive-unit"
    echo "$work/libexec/hikkoshi/${line//%i/web}"
}

# UNIT RESULT:STATUS JOB JOURNAL: what is started. JOURNAL is `unfinished`, `over` (the link leads nowhere)
# or `none`.
started() {
    local unit=$1 ended=$2 line
    rm -f "$journal" "$work"/run/units/*
    [[ $4 != unfinished ]] || touch "$journal"
    [[ $4 == none ]] || ln -s "$journal" "$link"
    printf '%s' "$3" >"$work/job"
    line=$(line_of "$unit" ExecStopPost)
    PATH=$work/bin:$PATH JOB=$work/job SERVICE_RESULT=${ended%:*} EXIT_STATUS=${ended#*:} sh -c "$line"
}

resume='--no-block start hikkoshi-resume@web.service'
expect() {
    local expected=$1 got
    shift
    got=$(started "$@") || fail "$*: it has failed"
    [[ $got == "$expected" ]] || fail "$*: '$got' instead of '$expected'"
}
# 101: a panic; 203 and 226: systemd could not start the program, or make its namespaces.
ends=(signal:KILL core-dump:ABRT oom-kill:KILL timeout:TERM watchdog:ABRT exit-code:3 exit-code:101 exit-code:203
    exit-code:226 exit-code:12 exit-code: resources: protocol:TERM protocol:0 exit-code:1 exit-code:2 success:0 success:TERM)
for ended in "${ends[@]}"; do
    for unit in receive resume; do
        expect '' $unit "$ended" '' none
        expect '' $unit "$ended" '' over
    done
    # It is that of a receiver that waits.
    [[ -L $link ]] || fail "the unit that resumes has removed a link that it has not made"
    expect '' receive "$ended" '' over
    [[ ! -L $link ]] || fail "a link that leads nowhere is left"
    expect "$resume" receive "$ended" '' unfinished
    [[ -L $link ]] || fail "the link to the journal is removed"
    # systemd starts the unit that resumes again by itself, except after its success.
    [[ $ended == success:* ]] || expect '' resume "$ended" '' unfinished
done
for ended in success:0 success:TERM; do
    expect "$resume" resume $ended '' unfinished
    # An administrator stops it.
    expect '' resume $ended 17 unfinished
done
# The guest is lost.
for unit in receive resume; do expect '' $unit exit-code:4 '' unfinished; done
grep -Fx Restart=on-failure "$units/hikkoshi-resume@.service" >/dev/null || fail "hikkoshi-resume@ is not restarted"
grep -Fx 'RestartPreventExitStatus=0 1 4' "$units/hikkoshi-resume@.service" >/dev/null ||
    fail "hikkoshi-resume@ is restarted after other statuses than the script expects"

# EXPECTED: what the unit that resumes becomes, by RESUME_OPTIONS in `options`.
becomes() {
    local line got
    line=$(line_of resume ExecStart)
    got=$(sh -c "${line/\$RESUME_OPTIONS/$options}" 2>"$work/said") || fail "it has failed: $(<"$work/said")"
    [[ $got == "$1" ]] || fail "it becomes '$got' instead of '$1'"
    # shellcheck disable=SC2086 # Words.
    "$hikkoshi" $got --help >/dev/null || fail "hikkoshi refuses: $got"
}
touch "$journal" && ln -sf "$journal" "$link"
options='--retry-for 2h' becomes "receive --resume=$link --progress none --retry-for 2h"
options='' becomes "receive --resume=$link --progress none"
# The options may be wrong: every other attempt is made without, also if all fail in the same way.
for ended in exit-code:2 exit-code:3; do
    for _ in 1 2; do
        expect '' resume $ended '' unfinished
        options='--retry-for 2h' becomes "receive --resume=$link --progress none --retry-for 1m"
        [[ $(<"$work/said") == *"web.conf, with which it has failed: --retry-for 2h"* ]] ||
            fail "it does not say why: $(<"$work/said")"
        expect '' resume $ended '' unfinished
        options='--retry-for 2h' becomes "receive --resume=$link --progress none --retry-for 2h"
    done
done
# It has waited for its source for 11 s.
EXITED=16000000 expect '' resume exit-code:3 '' unfinished
options='--retry-for 2h' becomes "receive --resume=$link --progress none --retry-for 2h"
# The next migration begins with the options.
expect '' resume exit-code:2 '' unfinished
[[ -e $work/run/without-options/web ]] || fail "the next attempt would be made with wrong options"
expect "$resume" receive exit-code:3 '' unfinished
[[ ! -e $work/run/without-options/web ]] || fail "the options of a new migration are not used"
expect '' resume exit-code:2 '' unfinished
expect '' resume exit-code:1 '' over
[[ ! -e $work/run/without-options/web ]] || fail "a file of a finished migration is left"
rm -f "$journal"
! sh -c "$(line_of resume ExecStart)" 2>"$work/said" || fail "it resumes nothing"
[[ $(<"$work/said") == "there is nothing to resume: "* ]] || fail "it does not say why: $(<"$work/said")"
# The engine of the first unit makes the link.
# shellcheck disable=SC2016 # systemd expands it.
options=$(sed -nE 's#^ExecStart=[^ ]*/hikkoshi (.*) \$RECEIVE_OPTIONS$#\1#p' "$units/hikkoshi-receive@.service")
[[ $options == *'--journal-link /run/hikkoshi/units/%i'* ]] || fail "hikkoshi-receive@ makes no link"
# shellcheck disable=SC2086 # Words.
"$hikkoshi" $options --help >/dev/null || fail "hikkoshi refuses: $options"
echo "units: what is executed beside an engine: as it should be"
