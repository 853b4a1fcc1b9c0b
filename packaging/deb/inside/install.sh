#!/usr/bin/env bash
# In a fresh Debian root, with a network: installs the package, with what it depends on, and purges it.
set -euo pipefail
# shellcheck source=lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

apt update
# apt installs what the package depends on.
cp /srv/shared/hikkoshi_*.deb /root
cd /root
apt install ./hikkoshi_*.deb
hikkoshi --version
depends=$(dpkg-query -W -f '${Depends}' hikkoshi)
for needed in libvirt0 libc6; do
    grep -E "(^|, )$needed \(>= [0-9]" <<<"$depends" >/dev/null ||
        fail "the package does not depend on a version of $needed: $depends"
done
[[ $(ldd /usr/bin/hikkoshi) == *"libvirt.so.0 => /"* ]] || fail "the program does not use libvirt"
# There is no daemon here; that is libvirt's answer, not the program's.
answer=$(hikkoshi check --domain none 2>&1) && fail "found a domain"
[[ $answer == *"libvirt-sock"* ]] || fail "check --domain says: $answer"
apt purge hikkoshi
no_traces
echo "installed in a fresh root with what it depends on, and purged: no traces"
