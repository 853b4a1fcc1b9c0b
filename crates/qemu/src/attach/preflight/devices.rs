//! How each type of device, object and network backend writes the guest's memory.
//!
//! Pre-copy rounds find written pages in the page tables of QEMU's process. These
//! tables track a write if a processor makes it through them: QEMU's own threads,
//! virtual processors (KVM's mappings follow the tables), and the kernel where it
//! copies for QEMU (`read`, vhost-net). They do not track writes by DMA into pages
//! that were pinned before, nor writes by other processes through their own
//! mappings. Block I/O with `cache=none` is DMA into pinned pages, too; there a
//! drain helps (see `block.rs`).
//!
//! So an allow-list names the types that write only in tracked ways, according to
//! QEMU's source code. All others are refused, because a lost page cannot be
//! detected later. The lists are in `known_types.rs`; `installed_qemu_tests.rs`
//! compares them with the types that the installed QEMUs offer.

use super::known_types::is_known;

/// How something writes the guest's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MemoryWrites {
    /// Through QEMU's page tables, by block I/O that a drain waits for, or not at
    /// all.
    Tracked,
    /// Into pinned pages, but no longer once the guest is paused, so that
    /// post-copy without rounds is possible. The text says why rounds are not.
    UntilPause(&'static str),
    /// In a way that no mode supports. The text says which.
    Refused(&'static str),
    /// Not known to this version of hikkoshi.
    Unknown,
}

pub(super) const OTHER_PROCESS: &str = "another process, or a device of the host, writes to the \
     guest's memory for it, which cannot be tracked from outside QEMU, so pages would be lost in \
     any mode";
const PASST: &str = "what 'info network' says of it does not show that it runs without vhost-user. \
     With vhost-user another process writes to the guest's memory, so pages could be lost in any \
     mode";
const WINDOW: &str = "its memory is shared with programs that do not move with the guest";
const SPARSE: &str = "memory that is plugged and unplugged at run time is not supported yet";
const ENCLAVE: &str = "its memory is encrypted by the host's processor and cannot be read";
const GPU: &str = "the host's graphics driver accesses the guest's memory, and its state cannot be \
     moved (QEMU does not migrate such guests either)";
const XEN: &str = "Xen's interfaces have not been tested with hikkoshi: it is not known whether all their \
     writes to the guest's memory can be tracked";
const CXL: &str = "its memory is separate from the guest's other memory, and is not supported yet";
const NITRO: &str = "it belongs to a Nitro enclave, whose memory the host cannot read";
const REMOTE: &str = "it is a part of a machine that runs in several processes";
pub(super) const SG_IO: &str = "the host's SCSI driver reads directly into the guest's memory, \
     which pre-copy rounds cannot track";
const VHOST_SCSI: &str = "the host's kernel reads directly into the guest's memory, \
     which pre-copy rounds cannot track";

/// How a device (by its QOM type) or an object (`-object`) writes memory.
pub(crate) fn of_type(kind: &str) -> MemoryWrites {
    let model = model(kind);
    if let Some(writes) = refused_family(kind, model) {
        return writes;
    }
    if matches!(model, "scsi-block" | "scsi-generic") {
        return MemoryWrites::UntilPause(SG_IO);
    }
    if model == "vhost-scsi" {
        return MemoryWrites::UntilPause(VHOST_SCSI);
    }
    let known = kind.ends_with("-x86_64-cpu")
        || kind.starts_with("memory-backend-") // The RAM checks cover these.
        || is_known(model);
    if known {
        MemoryWrites::Tracked
    } else {
        MemoryWrites::Unknown
    }
}

/// A type without its transport.
fn model(kind: &str) -> &str {
    if !kind.starts_with("virtio-") && !kind.starts_with("vhost-") {
        return kind;
    }
    let mut model = kind;
    for transport in ["-non-transitional", "-transitional", "-pci", "-device"] {
        model = model.strip_suffix(transport).unwrap_or(model);
    }
    model
}

/// The types of families that are refused as a whole, with future members.
fn refused_family(kind: &str, model: &str) -> Option<MemoryWrites> {
    let begins = |family: &str| kind.starts_with(family);
    let why = if begins("vhost-user")
        || kind.contains("-vhost-user")
        || begins("vhost-vdpa")
        || begins("vfio-")
        || kind == "pvrdma"
    {
        OTHER_PROCESS
    } else if begins("xen-") || kind.ends_with("-xen") {
        XEN
    } else if begins("ivshmem") {
        WINDOW
    } else if matches!(model, "virtio-mem" | "virtio-pmem") || kind == "hv-balloon" {
        SPARSE
    } else if matches!(kind, "sgx-epc" | "memory-backend-epc") {
        ENCLAVE
    } else if kind.contains("-gpu-gl")
        || kind.contains("-gpu-rutabaga")
        || kind.contains("vga-gl")
        || kind.contains("-vga-rutabaga")
    {
        GPU
    } else if begins("nitro-") {
        NITRO
    } else if begins("cxl-") || begins("pxb-cxl") {
        CXL
    } else if matches!(
        kind,
        "x-pci-proxy-dev" | "x-remote-object" | "x-vfio-user-server" | "remote-pcihost"
    ) {
        REMOTE
    } else {
        return None;
    };
    Some(MemoryWrites::Refused(why))
}

/// How a network backend writes memory, by its `-netdev` type and what `info network` prints after
/// it. A tap with vhost is `tap`: the kernel copies to QEMU's addresses.
pub(crate) fn of_network(kind: &str, info: &str) -> MemoryWrites {
    match kind {
        // The last two: until it is connected again. With vhost-user it is connected when QEMU
        // starts (`net/passt.c`).
        "passt"
            if ["stream,", "connecting to passt", "launching passt"]
                .iter()
                .any(|begin| info.starts_with(begin)) =>
        {
            MemoryWrites::Tracked
        }
        "passt" if !info.starts_with("vhost-user") => MemoryWrites::Refused(PASST),
        "passt" => MemoryWrites::Refused(OTHER_PROCESS),
        "nic" | "none" | "user" | "tap" | "bridge" | "l2tpv3" | "socket" | "stream" | "dgram"
        | "vde" | "hubport" | "netmap" | "af-xdp" => MemoryWrites::Tracked,
        _ if kind.starts_with("vhost-") => MemoryWrites::Refused(OTHER_PROCESS),
        _ => MemoryWrites::Unknown,
    }
}

/// QOM types in a machine that are not devices. They are frequent, so this saves a
/// query to QEMU.
pub(crate) fn is_not_a_device(kind: &str) -> bool {
    const BUSES: &str = "CXL HDA IDE ISA IndustryPack PCI PCIE SCSI System ccid-bus floppy-bus \
        i2c-bus nitro-vsock-bus nvme-bus pxb-bus pxb-cxl-bus pxb-pcie-bus sd-bus sdhci-bus ssi-bus ufs-bus \
        usb-bus virtio-bus virtio-mmio-bus virtio-pci-bus virtio-serial-bus vmbus";
    matches!(kind, "container" | "irq" | "clock")
        || kind.ends_with("memory-region")
        || kind.ends_with("-machine")
        || BUSES.split_whitespace().any(|bus| bus == kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn untracked_writers_are_refused() {
        for kind in [
            "vhost-user-blk-pci",
            "vhost-user-fs-pci",
            "vhost-user-rng-device",
            "vhost-user-of-the-future",
            "cryptodev-vhost-user",
            "vhost-vdpa-device-pci",
            "vfio-pci",
            "vfio-pci-nohotplug",
            "vfio-user-pci",
            "pvrdma",
            "ivshmem-plain",
            "ivshmem-doorbell",
            "virtio-mem-pci",
            "virtio-pmem",
            "virtio-gpu-gl-pci",
            "virtio-vga-gl",
            "virtio-gpu-rutabaga-pci",
            "virtio-vga-rutabaga",
            "x-pci-proxy-dev",
            "xen-disk",
            "PIIX3-xen",
            "cxl-type3",
            "nitro-vsock-bridge",
        ] {
            assert!(matches!(of_type(kind), MemoryWrites::Refused(_)), "{kind}");
        }
        for kind in ["vhost-user", "vhost-vdpa"] {
            assert!(
                matches!(of_network(kind, ""), MemoryWrites::Refused(_)),
                "{kind}"
            );
        }
    }

    #[test]
    fn devices_that_write_until_the_pause_need_postcopy() {
        for kind in [
            "scsi-block",
            "scsi-generic",
            "vhost-scsi",
            "vhost-scsi-pci",
            "vhost-scsi-pci-non-transitional",
        ] {
            assert!(
                matches!(of_type(kind), MemoryWrites::UntilPause(_)),
                "{kind}"
            );
        }
    }

    #[test]
    fn usual_devices_are_known() {
        for kind in [
            "virtio-net-pci",
            "virtio-blk-pci-non-transitional",
            "virtio-scsi-device",
            "vhost-vsock-pci",
            "pc-dimm",
            "qxl",
            "max-x86_64-cpu",
            "memory-backend-file",
            "iothread",
        ] {
            assert_eq!(of_type(kind), MemoryWrites::Tracked, "{kind}");
        }
        for kind in ["user", "tap", "nic", "hubport", "stream"] {
            assert_eq!(of_network(kind, ""), MemoryWrites::Tracked, "{kind}");
        }
    }

    #[test]
    fn new_types_are_unknown() {
        for kind in ["virtio-of-the-future-pci", "virtio", "", "scsi", "-pci"] {
            assert_eq!(of_type(kind), MemoryWrites::Unknown, "{kind}");
        }
        assert_eq!(of_network("of-the-future", ""), MemoryWrites::Unknown);
        assert!(!is_not_a_device("virtio-of-the-future-pci"));
    }
}
