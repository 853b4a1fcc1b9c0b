#!/usr/bin/env bash
# Tests the Debian package of build/deb in Debian roots (setup/lib/debian-roots.sh), as root: `test.sh
# [install] [guide] [shutdown]`, all by default; `make test-deb` runs it.
#
# install:  in a fresh root, with a network, the package is installed with what it depends on, and
#           purged (inside/install.sh). At the same time, on a host with systemd, it is upgraded,
#           checked, removed and purged (inside/upgrade.sh).
# guide:    two such hosts are started, each with systemd as its first process, connected by a
#           network. Every command of docs/operating.md is executed there, in order: guide.sh.
# shutdown: such hosts are shut down while they have a guest in post-copy: shutdown.sh.
#
# All of them run at once, and each in a layer over its root: several runs do not disturb each other.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
roots=$PWD/build/debian-roots
work=$PWD/build/test-deb-$$
declare -A parts=()
# shellcheck source=groups.sh
source packaging/deb/groups.sh

end_all() {
    local part
    for part in "${parts[@]}"; do kill -TERM "$part" 2>/dev/null || true; done
    wait
    remove_groups "hikkoshi-deb-$$-"
    rm -rf "$work"
}
trap end_all EXIT
trap 'exit 1' TERM INT

# in_root NAME ROOT SCRIPT: a part that runs SCRIPT in a root.
in_root() {
    unshare --mount --uts --ipc --pid --fork --kill-child packaging/deb/in-root.sh \
        "$roots/$2" "$work/shared" bash "/srv/shared/inside/$3" &>"$work/$1.log" &
    parts[$1]=$!
}

# in_systemd NAME ROOT SCRIPT: the same under systemd, without a network.
in_systemd() {
    OWN_CGROUP=hikkoshi-deb-$$-$1 unshare --mount --uts --ipc --net --pid --fork --kill-child packaging/deb/in-root.sh \
        "$roots/$2" "$work/shared" bash /srv/shared/inside/with-systemd.sh "$3" "/srv/shared/$1.log" &>"$work/$1.log" &
    parts[$1]=$!
}

mkdir -p "$work"/{shared,guide/shared,shutdown/shared}
cp build/deb/hikkoshi_*.deb "$work/shared"
cp -r packaging/deb/inside "$work/shared"
(cd packaging/systemd && printf '%s\n' *) >"$work/shared/units"
for part in guide shutdown; do
    cp build/deb/hikkoshi_*.deb build/kernel/vmlinuz build/initramfs.cpio "$work/$part/shared"
done

(($#)) || set -- install guide shutdown
for part; do
    case $part in
    install)
        in_root install fresh install.sh
        in_systemd upgrade hosts upgrade.sh
        ;;
    guide | shutdown)
        "packaging/deb/$part.sh" "$work/$part" "$roots/hosts" &>"$work/$part.log" &
        parts[$part]=$!
        ;;
    *) echo "test-deb: unknown part: $part" >&2 && exit 2 ;;
    esac
done
failed=()
for part in install upgrade guide shutdown; do
    [[ ${parts[$part]:-} ]] || continue
    wait "${parts[$part]}" || failed+=("$part")
    unset "parts[$part]"
    echo "test-deb: $part"
    cat "$work/$part.log"
    # What a script under systemd has said.
    [[ ! -e $work/shared/$part.log ]] || cat "$work/shared/$part.log"
done
((${#failed[@]} == 0)) || { echo "test-deb: failed: ${failed[*]}" >&2; exit 1; }
