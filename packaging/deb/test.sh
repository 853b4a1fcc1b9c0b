#!/usr/bin/env bash
# Tests the Debian package of build/deb in a fresh Debian root; `make test-deb` runs it. As root, with
# a network.
#
# 1. The package is installed (apt installs what it depends on), checked, upgraded and purged:
#    inside/install.sh. What was written is kept as a layer.
# 2. Two hosts with that layer are started, each with systemd as its first process, connected by a
#    network. Every command of docs/operating.md is executed there, in order: guide.sh.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
project=$PWD
roots=$project/build/debian-roots
# Another run of it may be under way.
work=$project/build/test-deb-$$
trap 'rm -rf "$work"' EXIT
mkdir -p "$work"/{shared,layer}
cp build/deb/hikkoshi_*.deb "$work/shared"
cp -r packaging/deb/inside "$work/shared"
(cd packaging/systemd && printf '%s\n' *) >"$work/shared/units"
cp build/kernel/vmlinuz build/initramfs.cpio "$work/shared"

echo "test-deb: installing in a fresh Debian root"
UPPER=$work/layer unshare --mount --uts --ipc --pid --fork --kill-child packaging/deb/in-root.sh \
    "$roots/fresh" "$work/shared" bash /srv/shared/inside/install.sh
packaging/deb/guide.sh "$work" "$work/layer/upper:$roots/fresh"
