//! `hikkoshi check`.

use std::path::PathBuf;

use clap::Args;

use super::allow_device::AllowSource;
use super::disks::DiskArgs;
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
    pub allow: AllowSource,

    /// Accept a destination whose vCPUs differ
    ///
    /// Differences are reported instead of refused. A program in the guest that uses a missing
    /// feature is killed.
    #[arg(verbatim_doc_comment, long, requires = "to", help_heading = MIGRATION)]
    pub allow_cpu_mismatch: bool,

    #[command(flatten)]
    pub disks: DiskArgs,

    #[command(flatten)]
    pub journals: JournalFolder,

    /// Print the QEMU command line that a destination needs, and check nothing else
    ///
    /// It is made from the running QEMU's command line. Comments say what you have to adapt.
    #[arg(verbatim_doc_comment,
        long,
        conflicts_with_all = [
            "to",
            "json",
            "allow_device",
            "allow_managed",
            "copy_disks",
            "shared_disks",
            "journal",
            "domain"
        ],
        help_heading = OUTPUT
    )]
    pub print_destination: bool,

    /// Write the result to FILE as one JSON object
    ///
    /// With "-" it is written to standard output, instead of the text.
    #[arg(verbatim_doc_comment, long, value_name = "FILE", help_heading = OUTPUT)]
    pub json: Option<PathBuf>,
}
