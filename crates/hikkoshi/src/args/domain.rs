//! Names a libvirt domain.

use clap::Args;
use hikkoshi_libvirt::DEFAULT_URI;

use super::headings::CONNECTION;

#[derive(Debug, Clone, Args)]
pub(crate) struct DomainArgs {
    /// Name or UUID of a libvirt domain, instead of --qmp
    ///
    /// libvirt stays the owner of QEMU's monitor, and passes on the commands.
    #[arg(verbatim_doc_comment,
        long,
        value_name = "NAME",
        conflicts_with = "qmp",
        help_heading = CONNECTION
    )]
    pub domain: Option<String>,

    /// The libvirt daemon of --domain, on this host
    #[arg(
        long,
        value_name = "URI",
        requires = "domain",
        default_value = DEFAULT_URI,
        help_heading = CONNECTION
    )]
    pub connect: String,
}
