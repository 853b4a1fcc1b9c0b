#!/usr/bin/env bash
# Cargo's runner for .ci/test.sh: runs a test program only in the group that it belongs to. Each test
# belongs to exactly one group.
#
# Tests with guests, peers and other processes depend on the machine's load. What fails is noted for
# .ci/retry.sh, which decides later.
set -euo pipefail
project=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

# The example monitor needs the guest images, which are made before the last groups run.
case $CARGO_PKG_NAME in
hikkoshi-engine) group=engine ;;
hikkoshi-qemu) group=qemu ;;
hikkoshi-lab | hikkoshi-vmm) group=lab ;;
hikkoshi-tests)
    # Nodes of a cluster and a browser mostly wait, beside the tests that move guests.
    case $(basename "$1") in
    cluster-* | pages-*) group=lab ;;
    *) group=guests ;;
    esac
    ;;
*) group=others ;;
esac

# Modules of the engine's tests that mostly wait for a timeout, and measure nothing of the process:
# `waiting` runs several of them at once.
waiting=(adapter_failures:: interruption:: recovery:: peers::destinations:: peers::handshake::
    peers::tls::)
if [[ $group == engine && $(basename "$1") == engine-* ]]; then
    case $TEST_GROUP in
    engine) set -- "$@" "${waiting[@]/#/--skip=}" ;;
    waiting) group=waiting && set -- "$@" "${waiting[@]}" ;;
    esac
fi

[[ $group == "$TEST_GROUP" ]] || exit 0
exec "$project/.ci/note-failures.sh" "$@"
