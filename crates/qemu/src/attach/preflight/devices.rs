//! Which types of devices, objects and network backends are known to write
//! the guest's memory only where hikkoshi sees it.
//!
//! Pages that are written in pre-copy rounds are found in the page tables of
//! QEMU's process. A write is seen there if a processor makes it through these
//! tables: QEMU's own threads, virtual processors (KVM's mappings follow the
//! tables), and the kernel where it copies for QEMU (`read`, vhost-net). Not
//! seen are writes by DMA into pages that were pinned before, and writes by
//! other processes through mappings of their own. Block I/O with `cache=none` is
//! DMA into pinned pages, too; there a drain makes the difference (see
//! `block.rs`).
//!
//! So the table names what is known, by reading QEMU's source, to write in no
//! other way. Everything else is refused: a page that was lost cannot be noticed
//! later. The tables are in `known.rs`; `offered.rs` compares them with what the
//! installed QEMUs offer.

use super::known::is_known;

/// How something writes the guest's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MemoryWrites {
    /// By QEMU's page tables, by block I/O that a drain waits for, or not at
    /// all.
    Seen,
    /// Into pinned pages, but nothing is under way once the guest is paused: it
    /// can be moved by post-copy alone. The text says why not otherwise.
    UntilPause(&'static str),
    /// In a way that no mode copes with; the text says which.
    Refused(&'static str),
    /// Not known to this version of hikkoshi.
    Unknown,
}

const OTHER_PROCESS: &str = "another process, or a device of the host, writes to the guest's \
     memory for it, which cannot be seen from outside QEMU, so pages would be lost";
const WINDOW: &str = "its memory is shared with programs that would not move along";
const SPARSE: &str = "memory that comes and goes is not supported yet";
const ENCLAVE: &str = "its memory is encrypted by the host's processor and cannot be read";
const GPU: &str = "the host's graphics driver gets at the guest's memory, and its state cannot be \
     moved (QEMU does not move such guests, either)";
const XEN: &str = "Xen's interfaces have not been tried with hikkoshi: whether all that they \
     write to the guest's memory can be seen is not known";
const CXL: &str = "its memory is not where the guest's other memory is, and is not supported yet";
const REMOTE: &str = "it is a part of a machine that is spread over several processes";
pub(super) const SG_IO: &str = "the host's SCSI driver writes what it reads straight into the guest's memory, \
     where pre-copy rounds do not see it";
const VHOST_SCSI: &str = "the host's kernel writes what it reads straight into the guest's memory, \
     where pre-copy rounds do not see it";

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
        || kind.starts_with("memory-backend-") // The RAM checks look at these.
        || is_known(model);
    if known {
        MemoryWrites::Seen
    } else {
        MemoryWrites::Unknown
    }
}

/// A type without the transport that it is on.
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

/// Those of which the whole family is out of the question, future members
/// included.
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

/// How a network backend writes memory, by the name that `-netdev` has for it.
/// A tap with vhost is `tap`: the kernel copies to QEMU's addresses then.
pub(crate) fn of_network(kind: &str) -> MemoryWrites {
    match kind {
        "nic" | "none" | "user" | "tap" | "bridge" | "l2tpv3" | "socket" | "stream" | "dgram"
        | "vde" | "hubport" | "netmap" | "af-xdp" => MemoryWrites::Seen,
        _ if kind.starts_with("vhost-") => MemoryWrites::Refused(OTHER_PROCESS),
        _ => MemoryWrites::Unknown,
    }
}

/// QOM types in a machine that are no devices: seen so often that QEMU need not
/// be asked about them.
pub(crate) fn is_not_a_device(kind: &str) -> bool {
    const BUSES: &str = "CXL HDA IDE ISA IndustryPack PCI PCIE SCSI System ccid-bus floppy-bus \
        i2c-bus nvme-bus pxb-bus pxb-cxl-bus pxb-pcie-bus sd-bus sdhci-bus ssi-bus ufs-bus \
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
    fn what_writes_memory_unseen_is_refused() {
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
        ] {
            assert!(matches!(of_type(kind), MemoryWrites::Refused(_)), "{kind}");
        }
        for kind in ["vhost-user", "vhost-vdpa"] {
            assert!(
                matches!(of_network(kind), MemoryWrites::Refused(_)),
                "{kind}"
            );
        }
    }

    #[test]
    fn what_pins_memory_until_the_pause_is_for_postcopy() {
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
            assert_eq!(of_type(kind), MemoryWrites::Seen, "{kind}");
        }
        for kind in ["user", "tap", "nic", "hubport", "stream"] {
            assert_eq!(of_network(kind), MemoryWrites::Seen, "{kind}");
        }
    }

    #[test]
    fn what_is_new_is_not_known() {
        for kind in ["virtio-of-the-future-pci", "virtio", "", "scsi", "-pci"] {
            assert_eq!(of_type(kind), MemoryWrites::Unknown, "{kind}");
        }
        assert_eq!(of_network("passt"), MemoryWrites::Unknown);
        assert!(!is_not_a_device("virtio-of-the-future-pci"));
    }
}
