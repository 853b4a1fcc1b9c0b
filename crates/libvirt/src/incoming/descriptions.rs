//! What libvirt gets to know of a domain that is created.

/// The descriptions of a domain that is created, as they were written again from what was checked.
#[cfg_attr(not(feature = "libvirt"), allow(dead_code))]
#[derive(Debug)]
pub(super) struct Descriptions {
    /// As its source describes it.
    pub(super) offered: String,
    /// As it is created here.
    pub(super) here: String,
    /// As it is defined here when the guest runs, if it is to be persistent.
    pub(super) persistent: Option<String>,
    /// Its snapshots, each behind the one that it is based on.
    pub(super) snapshots: Vec<Snapshot>,
}

/// A snapshot of a domain.
#[cfg_attr(not(feature = "libvirt"), allow(dead_code))]
#[derive(Debug)]
pub(super) struct Snapshot {
    /// Its description, as it was written again from what was checked.
    pub(super) xml: String,
    /// Whether the domain is based on it.
    pub(super) current: bool,
}
