#!/usr/bin/env bash
# The package is installed: checks its manual pages, completions, units and folders.
set -euo pipefail
# shellcheck source=lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

# The commands that the program itself names.
commands=$(hikkoshi --help | awk '/^Commands:/ { inside = 1; next } /^$/ { inside = 0 } inside { print $1 }' | grep -v '^help$')
[[ $commands == *migrate* ]] || fail "no commands in hikkoshi --help"
mandb --quiet
completed=$(fish -c 'complete -C "hikkoshi "')
man --where hikkoshi >/dev/null || fail "there is no hikkoshi(1)"
for command in $commands; do
    man --where "hikkoshi-$command" >/dev/null || fail "there is no hikkoshi-$command(1)"
    MANWIDTH=80 man "hikkoshi-$command" | grep -F "hikkoshi-$command" >/dev/null || fail "hikkoshi-$command(1) is empty"
    [[ $(whatis "hikkoshi-$command") == *" - "* ]] || fail "whatis does not know hikkoshi-$command"
    [[ $completed == *"$command"* ]] || fail "fish does not complete $command"
done
offered=$(bash -c 'source /usr/share/bash-completion/bash_completion && _completion_loader hikkoshi
    COMP_WORDS=(hikkoshi migrate --max-d) COMP_CWORD=2
    _hikkoshi hikkoshi --max-d migrate && printf "%s\n" "${COMPREPLY[@]}"') || true
[[ $offered == --max-downtime ]] || fail "bash completes --max-d to: $offered"
# shellcheck disable=SC2016
offered=$(zsh -fc 'autoload -U compinit && compinit -u -D && print $_comps[hikkoshi] && autoload +X _hikkoshi && whence -f _hikkoshi')
[[ $offered == _hikkoshi*max-downtime* ]] || fail "zsh does not load the completion: ${offered:0:200}"
[[ $(fish -c 'complete -C "hikkoshi migrate --max-d"') == --max-downtime* ]] || fail "fish does not complete --max-d"

diff /srv/shared/units <(cd /lib/systemd/system && printf '%s\n' hikkoshi*) || fail "the package has other units than packaging/systemd"
for unit in /lib/systemd/system/hikkoshi*; do
    name=$(basename "$unit")
    warnings=$(systemd-analyze verify --man=yes "${name/@./@guest.}" 2>&1 | grep -F hikkoshi) || true
    [[ -z $warnings ]] || fail "$name: $warnings"
done
bash "$(dirname "${BASH_SOURCE[0]}")/receive-units.sh" /lib/systemd/system /usr/libexec/hikkoshi /usr/bin/hikkoshi
# The exposure, in tenths: 7.5 is what is possible without a seccomp filter.
for unit in hikkoshi-receive@guest:75 hikkoshi-resume@guest:75 hikkoshi-dashboard:36; do
    systemd-analyze security --offline=yes --no-pager --threshold="${unit#*:}" "${unit%:*}.service" >/dev/null ||
        fail "${unit%:*}.service is more exposed than before: see systemd-analyze security"
done
# As needrestart reads them, and uses them: the first expression that matches the name.
for unit in hikkoshi-receive@web.service:0 hikkoshi-resume@web.service:0 hikkoshi-daemon.service:restarted \
    guest@web.service:0 migrate-web.service:0 resume-web.service:0 ssh.service:restarted; do
    # shellcheck disable=SC2016
    restarts=$(perl -e '
        our %nrconf;
        for ("/etc/needrestart/conf.d/hikkoshi.conf", "/usr/share/doc/hikkoshi/examples/needrestart-guests.conf") {
            -r or die "$_: $!"; do $_; die "$_: $@" if $@ }
        for my $re (keys %{$nrconf{override_rc}}) { print $nrconf{override_rc}->{$re} and exit if $ARGV[0] =~ /$re/ }
        print "restarted"' "${unit%:*}")
    [[ $restarts == "${unit#*:}" ]] || fail "needrestart and ${unit%:*}: $restarts"
done
# Nothing is enabled by the installation.
enabled=$(find /etc/systemd -name '*hikkoshi*')
[[ -z $enabled ]] || fail "the installation has enabled: $enabled"
[[ $(stat -c '%a %U' /run/hikkoshi /run/hikkoshi/{invitations,units} | sort -u) == "700 root" ]] ||
    fail "/run/hikkoshi is not there, or others may read it"
[[ -s /usr/share/doc/hikkoshi/docs/operating.md && -s /usr/share/doc/hikkoshi/copyright ]] || fail "documents are missing"
grep -F 'rustls' /usr/share/doc/hikkoshi/THIRD-PARTY-LICENSES* >/dev/null || zgrep -F rustls /usr/share/doc/hikkoshi/THIRD-PARTY-LICENSES.gz >/dev/null ||
    fail "the licences of the crates are missing"
echo "$(wc -w <<<"$commands") commands: manual pages, completions; units, folders, documents: as they should be"
