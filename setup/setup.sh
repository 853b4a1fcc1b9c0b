#!/usr/bin/env bash
# Sets up everything that building and testing need, on Debian 12; `setup.sh only COMPONENT...` only
# these components, which is what `make demo` does.
#
#   build/qemu-7.2, build/qemu-10.0   the distribution's QEMU and its backport, side by side
#   build/qemu-11.1                   the backport of the next release, with all its libraries
#   build/kernel                      the distribution's kernel and the modules the test guest loads
#   build/busybox                     the distribution's static busybox
#   build/qemu-img                    the distribution's qemu-img, for the test guests' disks
#   build/bochs                       the distribution's Bochs, which the second-stage tables run on
#   build/swtpm                       the distribution's TPM emulator
#   build/shellcheck                  the distribution's shellcheck, for `make lint`
#   build/libvirt                     the distribution's libvirt and its headers, for domains
#
# and, if named on the command line (`setup.sh apache bpftrace`), what only the benchmarks need:
#
#   build/apache                      the distribution's Apache, with every library, for a guest
#   build/bpftrace                    the distribution's bpftrace
#
# or only tests of whole guests and of many devices (`setup.sh ovmf debian devices-kernel passt`):
#
#   build/ovmf                        the distribution's UEFI firmware
#   build/debian                      an image of a whole Debian guest, made by mmdebstrap (as root)
#   build/kernel-devices              the distribution's kernel with the drivers of all devices
#   build/kernels                     kernels of several series, for `make test-kernels`
#   build/passt                       passt of the next release
#
# or only tests of disks that several hosts share (`setup.sh bindfs`):
#
#   build/bindfs                      the distribution's bindfs, a FUSE file system
#
# or only tests of a cluster (`setup.sh pacemaker`):
#
#   build/pacemaker                   the distribution's Corosync, Pacemaker and crmsh
#
# or only tests of `migrate --ssh` (`setup.sh openssh`):
#
#   build/openssh                     the distribution's OpenSSH, server and client
#
# or only tests of pages and metrics (`setup.sh chromium prometheus`):
#
#   build/chromium                    the distribution's Chromium without windows, and fonts
#   build/prometheus                  the distribution's Prometheus, and promtool
#
# or only the Debian package (`setup.sh package-root fresh-root hosts-root`):
#
#   build/debian-roots                Debian roots, made by mmdebstrap (as root): one in which the
#                                     package is built, one as it is after installation, and one of
#                                     hosts with QEMU and systemd
#
# or only tests of domains with newer versions of libvirt (`setup.sh libvirt-11.3 libvirt-12.9`):
#
#   build/debian-roots                roots of the next release (as root), with its libvirt and QEMU
#                                     10.0, or with those of its backports, QEMU 11.1
#
# None of this is installed: apt downloads the packages, with its signatures checked, into a private
# state directory, and they are unpacked into build/. Only small tools that are
# missing (a linker, iproute2, cpio) are installed in the system, and only then is root needed;
# `setup.sh tools` does only that.
#
# Every step leaves a stamp and is skipped when its result is there; a second run needs no network.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
project=$(dirname "$here")
build=$project/build
readonly here project build

# shellcheck source=lib/say.sh
source "$here/lib/say.sh"
# shellcheck source=lib/machine.sh
source "$here/lib/machine.sh"
# shellcheck source=lib/apt.sh
source "$here/lib/apt.sh"
# shellcheck source=lib/program.sh
source "$here/lib/program.sh"
# shellcheck source=lib/qemu.sh
source "$here/lib/qemu.sh"
# shellcheck source=lib/kernel.sh
source "$here/lib/kernel.sh"
# shellcheck source=lib/bochs.sh
source "$here/lib/bochs.sh"
# shellcheck source=lib/apache.sh
source "$here/lib/apache.sh"
# shellcheck source=lib/ovmf.sh
source "$here/lib/ovmf.sh"
# shellcheck source=lib/libvirt.sh
source "$here/lib/libvirt.sh"
# shellcheck source=lib/debian.sh
source "$here/lib/debian.sh"
# shellcheck source=lib/debian-roots.sh
source "$here/lib/debian-roots.sh"
# shellcheck source=lib/chromium.sh
source "$here/lib/chromium.sh"
# shellcheck source=lib/openssh.sh
source "$here/lib/openssh.sh"
# shellcheck source=lib/pacemaker.sh
source "$here/lib/pacemaker.sh"
# shellcheck source=lib/passt.sh
source "$here/lib/passt.sh"
# shellcheck source=lib/prometheus.sh
source "$here/lib/prometheus.sh"

check_machine
# shellcheck disable=SC2154 # set by check_machine
use_release "$codename"
install_missing_tools
# Only these are needed to build.
[[ $* != tools ]] || exit 0

mkdir -p "$build"
# Two concurrent runs would write the same folders. The second waits, and then has nothing to do.
exec 9>"$build/.setup.lock"
flock 9

if [[ ${1:-} == only ]]; then
    components=("${@:2}")
else
    components=(qemu-7.2 qemu-10.0 qemu-11.1 qemu-img kernel busybox bochs swtpm shellcheck libvirt "$@")
fi
for component in "${components[@]}"; do
    case $component in
    qemu-7.2) setup_qemu 7.2 "$codename" ;;
    qemu-10.0) setup_qemu 10.0 "$codename-backports" ;;
    qemu-11.1) with_release trixie setup_qemu 11.1 trixie-backports ;;
    qemu-img) setup_qemu_img ;;
    kernel) setup_kernel ;;
    busybox) setup_busybox ;;
    bochs) setup_bochs ;;
    swtpm) setup_program swtpm swtpm swtpm-libs ;;
    shellcheck) setup_program shellcheck shellcheck ;;
    libvirt) setup_libvirt ;;
    apache) setup_apache ;;
    bpftrace) setup_program bpftrace bpftrace ;;
    ovmf) setup_ovmf ;;
    debian) setup_debian ;;
    package-root) setup_package_root ;;
    fresh-root) setup_fresh_root ;;
    hosts-root) setup_hosts_root ;;
    devices-kernel) setup_devices_kernel ;;
    kernels) setup_kernels ;;
    passt) with_release trixie setup_passt ;;
    bindfs) setup_program bindfs bindfs ;;
    pacemaker) setup_pacemaker ;;
    openssh) setup_openssh ;;
    libvirt-11.3) with_release trixie setup_libvirt_root 11.3 trixie ;;
    libvirt-12.9) with_release trixie setup_libvirt_root 12.9 trixie-backports ;;
    chromium) setup_chromium ;;
    prometheus) setup_prometheus ;;
    *) fail "unknown component: $component" "The components are in $here/setup.sh." ;;
    esac
done

# A hundred megabytes of package lists, needed only while a component is missing.
rm -rf "$build/apt"
