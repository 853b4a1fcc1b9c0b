#!/usr/bin/env bash
# What the units in the folder $1 do when an engine has ended, by the program in the folder $2:
# `ExecStopPost=` as systemd executes it, with a `systemctl` that only says what it was asked.
set -euo pipefail
units=$1 programs=$2
work=$(mktemp -d)
trap 'rm -r "$work"' EXIT

fail() {
    printf 'stop-post: %s\n' "$*" >&2
    exit 1
}

mkdir "$work/bin" "$work/run"
cat >"$work/bin/systemctl" <<'SH'
#!/bin/sh
[ "$1" = show ] && cat "$JOB" && exit
echo "$*"
SH
sed "s#/run/hikkoshi#$work/run#" "$programs/resume-after-receive" >"$work/bin/resume-after-receive"
chmod +x "$work/bin"/*

# UNIT RESULT:STATUS JOB [JOURNAL-OF]: what is started.
started() {
    local unit=$1 ended=$2 line
    rm -f "$work"/run/*
    [[ ! ${4:-} ]] || printf '{"version":3,"qemu":{"place":{"qmp":"%s"}}}' "$4" >"$work/run/destination-7-7.json"
    printf '%s' "$3" >"$work/job"
    line=$(sed -nE 's#^ExecStopPost=/usr(/local)?/libexec/hikkoshi/(resume-after-receive .*)$#\2#p' "$units/hikkoshi-$unit@.service")
    [[ $line ]] || fail "$unit: no ExecStopPost= that resumes"
    line=${line//%i/web}
    PATH=$work/bin:$PATH JOB=$work/job SERVICE_RESULT=${ended%:*} EXIT_STATUS=${ended#*:} \
        RESUME_OPTIONS="${options:---qmp /run/guests/web/qmp}" sh -c "$line"
}

resume='--no-block start hikkoshi-resume@web.service'
journal=/run/guests/web/qmp
expect() {
    local expected=$1 got
    shift
    got=$(started "$@") || fail "$*: it has failed"
    [[ $got == "$expected" ]] || fail "$*: '$got' instead of '$expected'"
}
# 101: a panic; 203 and 226: systemd could not start the program, or make its namespaces.
for ended in signal:KILL core-dump:ABRT oom-kill:KILL timeout:TERM watchdog:ABRT exit-code:3 \
    exit-code:101 exit-code:203 exit-code:226 exit-code:12 resources: protocol:TERM :; do
    expect "$resume" receive $ended ''
    expect '' resume $ended '' $journal
done
for ended in success:0 success:TERM protocol:0 exit-code:1 exit-code:2 exit-code:4; do
    for unit in receive resume; do expect '' $unit $ended ''; done
done
for ended in exit-code:1 exit-code:2 exit-code:4; do
    for unit in receive resume; do expect '' $unit $ended '' $journal; done
done
# All pages are here, and the source does not know that.
for unit in receive resume; do
    for ended in success:0 success:TERM; do expect "$resume" $unit $ended '' $journal; done
    options=--qmp=$journal expect "$resume" $unit success:0 '' $journal
    # Another guest's.
    expect '' $unit success:0 '' $journal.other
    expect '' $unit success:0 '' /other$journal
done
# It has ended before it was ready: the unit that resumes had nothing to resume.
expect "$resume" receive protocol:0 '' $journal
expect '' resume protocol:0 '' $journal
# An administrator stops it.
expect '' resume success:0 17 $journal
# systemd starts hikkoshi-resume@ again after all others.
grep -Fx Restart=on-failure "$units/hikkoshi-resume@.service" >/dev/null || fail "hikkoshi-resume@ is not restarted"
grep -Fx 'RestartPreventExitStatus=0 1 2 4' "$units/hikkoshi-resume@.service" >/dev/null ||
    fail "hikkoshi-resume@ is restarted after other statuses than the script expects"
echo "units: what follows the end of an engine: as it should be"
