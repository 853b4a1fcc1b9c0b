#!/usr/bin/env bash
# Installs what is built below a new folder, checks what is installed, and removes it again.
# `make test-install` runs it. Needs man, bash and systemd-analyze (not a running systemd), and as
# another user than root, namespaces of users.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT

fail() {
    printf 'test-install: %s\n' "$*" >&2
    exit 1
}
# Not /usr, which the units in the tree name.
prefix=/usr/local
to=$root$prefix
run_make() { make --no-print-directory --silent PREFIX=$prefix DESTDIR="$root" "$@" >/dev/null; }

run_make install
"$to/bin/hikkoshi" --version >/dev/null || fail "the installed program does not run"

pages=0
for page in "$to"/share/man/man1/*.1; do
    warnings=$(MANWIDTH=80 man --warnings --local-file "$page" 2>&1 >/dev/null) || fail "man fails for $page: $warnings"
    [[ -z $warnings ]] || fail "$page: $warnings"
    pages=$((pages + 1))
done
((pages > 1)) || fail "there are no manual pages"
MANWIDTH=80 man --local-file "$to/share/man/man1/hikkoshi-migrate.1" | grep 'max-downtime' >/dev/null ||
    fail "hikkoshi-migrate(1) does not have --max-downtime"

completions=$to/share/bash-completion/completions/hikkoshi
bash -n "$completions"
# What bash offers after `hikkoshi migrate --max-d`.
# shellcheck disable=SC1090 # The file is generated.
offered=$(source "$completions" && COMP_WORDS=(hikkoshi migrate --max-d) COMP_CWORD=2 &&
    _hikkoshi hikkoshi --max-d migrate && printf '%s\n' "${COMPREPLY[@]}")
[[ $offered == --max-downtime ]] || fail "bash completes --max-d to: $offered"

units=$to/lib/systemd/system
# What is installed is what the tree has, and the documents name each unit.
diff <(cd packaging/systemd && printf '%s\n' *) <(cd "$units" && printf '%s\n' *) || fail "other units are installed than packaging/systemd has"
for unit in "$units"/*; do
    name=$(basename "$unit" | sed 's/@\./@NAME./')
    grep -F "\`$name\`" docs/installing.md >/dev/null || fail "docs/installing.md does not name $name"
done
packaging/deb/inside/receive-units.sh "$units" "$to/libexec/hikkoshi" "$to/bin/hikkoshi"
# The files that the units name are installed.
named=$(grep -hoE '/usr/[a-z/]*hikkoshi[^ ]*' "$units"/* | sort -u)
[[ $named == *"$prefix/share/doc/hikkoshi/docs/operating.md"* ]] || fail "no unit names a document: $named"
for path in $named; do [[ -e $root$path ]] || fail "a unit names $path, which is not installed"; done
sed -i -E "s#$prefix/(bin|libexec)/hikkoshi#$to/\1/hikkoshi#" "$units"/*
for unit in "$units"/*; do
    unit=$(basename "$unit")
    warnings=$(SYSTEMD_UNIT_PATH=$units: systemd-analyze verify --man=no "${unit/@./@guest.}" 2>&1 | grep -F hikkoshi) || true
    [[ -z $warnings ]] || fail "$unit: $warnings"
done
# These must not be confined by seccomp: see the units.
if grep -E '^(SystemCall|RestrictAddressFamilies|RestrictNamespaces|RestrictRealtime|RestrictSUIDSGID|ProtectKernel|ProtectClock|ProtectHostname|LockPersonality|MemoryDenyWriteExecute|PrivateDevices|DynamicUser)' \
    "$units"/hikkoshi-re*; then
    fail "a setting above confines the engine by seccomp"
fi
systemd-tmpfiles --root="$root" --create hikkoshi.conf
mode=$(stat -c %a "$root/run/hikkoshi")
[[ $mode == 700 ]] || fail "/run/hikkoshi has mode $mode"
rm -r "$root/run"

# Without DESTDIR, for this host, whose /run is another folder here: not while a migration needs it.
uninstall_here() {
    unshare --map-root-user --mount bash -ec "mount -t tmpfs tmpfs /run
        mkdir /run/hikkoshi
        $1
        make --no-print-directory --silent PREFIX='$to' uninstall" 2>&1
}
journal=/run/hikkoshi/destination-1-1.json lock=/run/hikkoshi/source-1-1.lock
! said=$(uninstall_here "touch $journal") || fail "uninstall succeeds while there is $journal"
[[ $said == *"$journal belongs to a migration that is not finished"* ]] || fail "uninstall says: $said"
! said=$(uninstall_here "exec 9>$lock; flock 9") || fail "uninstall succeeds while $lock is held"
[[ $said == *"holds $lock"* ]] || fail "uninstall says: $said"
"$to/bin/hikkoshi" --version >/dev/null || fail "uninstall has removed the program while it was needed"

# $1: by which command everything was removed.
all_removed() {
    local left
    left=$(find "$root" -type f -o -type l)
    [[ -z $left ]] || fail "uninstall $1 leaves: $left"
}
uninstall_here "touch $lock" >/dev/null || fail "uninstall fails"
all_removed "without DESTDIR"
run_make install
run_make uninstall
all_removed "with DESTDIR"
echo "test-install: $pages manual pages, completions, units, tmpfiles.d: as they should be"
