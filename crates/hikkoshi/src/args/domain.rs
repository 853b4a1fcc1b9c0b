//! Names a libvirt domain.

use clap::Args;
use hikkoshi_libvirt::{DEFAULT_URI, MoveOptions};
use serde::{Deserialize, Serialize};

use super::headings::{CONNECTION, MIGRATION};

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
        conflicts_with = "qmp",
        default_value = DEFAULT_URI,
        help_heading = CONNECTION
    )]
    pub connect: String,
}

/// Options of `migrate` for domains, which the journal stores.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct DomainOptions {
    /// Remove the domain's persistent configuration at the source
    ///
    /// When the guest is at the destination, with what libvirt keeps of it at the source. The file
    /// of the firmware's variables stays: the destination may use the same.
    #[arg(verbatim_doc_comment,
        long,
        requires = "domain",
        conflicts_with = "qmp",
        help_heading = MIGRATION
    )]
    pub undefine_source: bool,

    /// Make the domain persistent at the destination
    #[arg(long, requires = "domain", conflicts_with = "qmp", help_heading = MIGRATION)]
    pub persistent: bool,

    /// Start the domain at the destination when that host boots
    #[arg(long, requires = "persistent", conflicts_with = "qmp", help_heading = MIGRATION)]
    pub autostart: bool,
}

impl DomainOptions {
    /// What happens to the domain.
    pub(crate) fn move_options(&self) -> MoveOptions {
        MoveOptions {
            undefine: self.undefine_source,
            persistent: self.persistent,
            autostart: self.autostart,
        }
    }

    /// These options, and those of `earlier`.
    #[must_use]
    pub(super) fn over(&self, earlier: &Self) -> Self {
        Self {
            undefine_source: self.undefine_source || earlier.undefine_source,
            persistent: self.persistent || earlier.persistent,
            autostart: self.autostart || earlier.autostart,
        }
    }
}
