//! `hikkoshi check`.

use std::path::PathBuf;

use clap::Args;
use hikkoshi_qemu::DiskSelection;

use super::allow_device::AllowDevice;
use super::domain::DomainArgs;
use super::headings::{CONNECTION, MIGRATION, OUTPUT};
use super::journal_folder::JournalFolder;
use super::security::InvitationArg;

#[derive(Debug, Clone, Args)]
pub(crate) struct Check {
    /// QMP socket of the QEMU process
    #[arg(long, value_name = "PATH", required_unless_present = "domain", help_heading = CONNECTION)]
    pub qmp: Option<PathBuf>,

    #[command(flatten)]
    pub domain: DomainArgs,

    /// Also compare with this destination: its invitation, or "-" to read it from standard input
    ///
    /// The destination compares the two machines and changes nothing. The invitation stays valid,
    /// and the destination waits for a guest as before.
    #[arg(verbatim_doc_comment, long, value_name = "INVITATION", help_heading = CONNECTION)]
    pub to: Option<InvitationArg>,

    #[command(flatten)]
    pub devices: AllowDevice,

    /// Accept a destination whose vCPUs differ
    ///
    /// As for `hikkoshi migrate`.
    #[arg(verbatim_doc_comment, long, requires = "to", help_heading = MIGRATION)]
    pub allow_cpu_mismatch: bool,

    /// The guest's disks will be copied: all, or these
    ///
    /// As for `hikkoshi migrate`. With --to, the destination compares them with its own.
    #[arg(verbatim_doc_comment,
        long,
        value_name = "DISKS",
        value_delimiter = ',',
        num_args = 0..=1,
        require_equals = true,
        help_heading = MIGRATION
    )]
    pub copy_disks: Option<Vec<String>>,

    /// These disks will not be copied: both hosts use them
    ///
    /// As for `hikkoshi migrate`.
    #[arg(verbatim_doc_comment,
        long,
        value_name = "DISKS",
        value_delimiter = ',',
        requires = "copy_disks",
        help_heading = MIGRATION
    )]
    pub shared_disks: Vec<String>,

    #[command(flatten)]
    pub journals: JournalFolder,

    /// Print the QEMU command line that a destination needs, and check nothing else
    ///
    /// It is made from the running QEMU's command line. Comments say what you have to adapt.
    #[arg(verbatim_doc_comment,
        long,
        conflicts_with_all = ["to", "json", "allow_device", "copy_disks", "journal", "domain"],
        help_heading = OUTPUT
    )]
    pub print_destination: bool,

    /// Write the result to FILE as one JSON object
    ///
    /// With "-" it is written to standard output, instead of the text.
    #[arg(verbatim_doc_comment, long, value_name = "FILE", help_heading = OUTPUT)]
    pub json: Option<PathBuf>,
}

impl Check {
    /// Which disks are to be copied, if any are.
    pub(crate) fn copied_disks(&self) -> Option<DiskSelection> {
        Some(DiskSelection {
            named: self.copy_disks.clone()?,
            shared: self.shared_disks.clone(),
        })
    }
}
