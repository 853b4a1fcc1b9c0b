#!/usr/bin/env bash
# What the units in the folder $1 do before an engine starts, and when it has ended, by the program in
# the folder $2 and by hikkoshi, which is $3: `ExecStartPre=` and `ExecStopPost=` as systemd executes
# them, with a `systemctl` that only says what it was asked.
set -euo pipefail
units=$1 programs=$2 hikkoshi=$3
work=$(mktemp -d)
trap 'rm -r "$work"' EXIT

fail() {
    printf 'receive-units: %s\n' "$*" >&2
    exit 1
}

mkdir -p "$work"/{bin,run,other,libexec/hikkoshi}
ln -s "$(realpath "$hikkoshi")" "$work/bin/hikkoshi"
cat >"$work/bin/systemctl" <<'SH'
#!/bin/sh
[ "$1" = show ] && cat "$JOB" && exit
echo "$*"
SH
sed "s#/run/hikkoshi#$work/run#" "$programs/receive-unit" >"$work/libexec/hikkoshi/receive-unit"
chmod +x "$work/bin/systemctl" "$work/libexec/hikkoshi/receive-unit"

# UNIT SETTING: what the setting executes of this program.
line_of() {
    local line
    line=$(sed -nE "s#^$2=/usr(/local)?/libexec/hikkoshi/(receive-unit .*)\$#\2#p" "$units/hikkoshi-$1@.service")
    [[ $line ]] || fail "$1: no $2= of receive-unit"
    echo "$work/libexec/hikkoshi/${line//%i/web}"
}

# UNIT RESULT:STATUS JOB [JOURNAL-OF]: what is started. The journal is in the folder `run`, or in that
# which `folder` names.
started() {
    local unit=$1 ended=$2 line journals=$work/${folder:-run}
    rm -f "$work"/{run,other}/*
    [[ ! ${4:-} ]] || printf '{"version":3,"qemu":{"place":{"qmp":"%s"}}}' "$4" >"$journals/destination-7-7.json"
    printf '%s' "$3" >"$work/job"
    line=$(line_of "$unit" ExecStopPost)
    PATH=$work/bin:$PATH JOB=$work/job SERVICE_RESULT=${ended%:*} EXIT_STATUS=${ended#*:} \
        RECEIVE_OPTIONS="${received:-}" RESUME_OPTIONS="${options:---qmp /run/guests/web/qmp}" sh -c "$line"
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
for ended in success:0 success:TERM protocol:0 exit-code: exit-code:1 exit-code:2 exit-code:4; do
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
# It was not started, or has ended before it was ready: the unit that resumes had nothing to resume.
for ended in exit-code: protocol:0; do
    expect "$resume" receive $ended '' $journal
    expect '' resume $ended '' $journal
done
# An administrator stops it.
expect '' resume success:0 17 $journal
# In another folder.
folder=other options="--qmp $journal --journal=$work/other" expect "$resume" receive success:0 '' $journal
folder=other expect '' receive success:0 '' $journal

# checked STATUS SAID UNIT: what the check before the start does with RECEIVE_OPTIONS in `received` and
# RESUME_OPTIONS in `options`.
checked() {
    local status=0 said
    said=$(RECEIVE_OPTIONS=$received RESUME_OPTIONS=$options sh -c "$(line_of "$3" ExecStartPre)" 2>&1) || status=$?
    [[ $status == "$1" && $said == *"$2"* ]] || fail "check $3: '$received' and '$options': status $status: $said"
}
# Both units make the same check. The one that resumes needs none if there is no journal.
rm -f "$work"/{run,other}/*
for there in '' run other; do
    [[ ! $there ]] || printf '{"version":3,"qemu":{"place":{"qmp":"%s"}}}' $journal >"$work/$there/destination-7-7.json"
    unit=resume said=": correct them"
    [[ $there ]] || { unit=receive said="hikkoshi-resume@web would need them"; }
    received="--listen 10.0.0.2:7000 --qmp $journal"
    [[ $there != other ]] || received+=" --journal $work/other"
    rest=${received#*"$journal"}
    for options in "--qmp $journal$rest" "--qmp=$journal --retry-for 2h${rest/l /l=}"; do checked 0 '' $unit; done
    options='' checked 2 "$said" $unit
    options="--qmp /run/guests/wbe/qmp$rest" checked 2 'must have the same --qmp as RECEIVE_OPTIONS' $unit
    options="--qmp $journal --journal=/tmp" checked 2 'must have the same --journal as RECEIVE_OPTIONS' $unit
    options="--qmp $journal$rest --retry-fro 2h" checked 2 "unexpected argument '--retry-fro'" $unit
    options="--qmp $journal$rest --retry-for 2x" checked 2 'is not a duration' $unit
    rm -f "$work"/{run,other}/*
    options='--qmp /run/guests/wbe/qmp' checked 0 '' resume
done
received='--listen 10.0.0.2:7000 --connect qemu:///system'
options='' checked 0 '' receive
options='--domain web' checked 2 "unexpected argument '--domain'" receive

# systemd starts hikkoshi-resume@ again after all others.
grep -Fx Restart=on-failure "$units/hikkoshi-resume@.service" >/dev/null || fail "hikkoshi-resume@ is not restarted"
grep -Fx 'RestartPreventExitStatus=0 1 2 4' "$units/hikkoshi-resume@.service" >/dev/null ||
    fail "hikkoshi-resume@ is restarted after other statuses than the script expects"
echo "units: what comes before and after an engine: as it should be"
