//! Domains of libvirt.

pub(crate) mod at_once;
mod configurations;
mod copied_disks;
mod give_up;
mod hanging_daemons;
mod laboratory;
mod loaded_qemu;
pub(crate) mod moved_domain;
mod one_host;
mod other_clients;
mod persistence;
mod recovery;
mod snapshots;
mod tpm;
mod two_daemons;
mod versions;
