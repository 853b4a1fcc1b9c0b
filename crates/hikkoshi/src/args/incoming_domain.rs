//! How `receive` creates a libvirt domain for the guest.

use std::path::PathBuf;

use clap::Args;
use hikkoshi_libvirt::Change;

use super::headings::CONNECTION;

#[derive(Debug, Clone, Args)]
pub(crate) struct IncomingDomain {
    /// The libvirt daemon that gets the guest, such as qemu:///system, instead of --qmp
    ///
    /// The guest must be a libvirt domain at the source, too. Nothing has to be prepared: the
    /// domain is created when a source has connected, from the description that it sends.
    #[arg(verbatim_doc_comment,
        long,
        value_name = "URI",
        conflicts_with_all = ["qmp", "resume"],
        help_heading = CONNECTION
    )]
    pub connect: Option<String>,

    /// Change what is specific to the host in the domain's description
    ///
    /// disk=TARGET,path=PATH for another image, as in disk=vda,path=/images/a.qcow2; or
    /// interface=ADDRESS,bridge=NAME (or network=NAME, dev=NAME) for another network, as in
    /// interface=52:54:00:12:34:56,bridge=br1. Can be repeated.
    #[arg(verbatim_doc_comment,
        long = "set",
        value_name = "CHANGE",
        requires = "connect",
        help_heading = CONNECTION
    )]
    pub changes: Vec<Change>,

    /// Use the domain description in FILE instead of the one that the source sends
    ///
    /// It must describe the same machine: libvirt refuses it where the guest would notice.
    #[arg(verbatim_doc_comment,
        long,
        value_name = "FILE",
        requires = "connect",
        help_heading = CONNECTION
    )]
    pub xml: Option<PathBuf>,

    /// Accept only the domain of this name, and refuse a source that offers another one
    #[arg(long, value_name = "NAME", requires = "connect", help_heading = CONNECTION)]
    pub only_domain: Option<String>,

    /// Accept a description that passes arguments directly to QEMU
    ///
    /// They can name any file of this host, and libvirt does not check them.
    #[arg(verbatim_doc_comment, long, requires = "connect", help_heading = CONNECTION)]
    pub allow_qemu_arguments: bool,
}
