//! `hikkoshi invite`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgGroup, Args};

use super::durations;
use super::headings::{CONNECTION, OUTPUT};
use super::journal_folder::JournalFolder;

/// How long an invitation is valid that no source uses.
pub(crate) const DEFAULT_WAIT: Duration = Duration::from_secs(15 * 60);

#[derive(Debug, Clone, Args)]
#[command(group(
    ArgGroup::new("machine").args(["template", "connect", "qmp", "withdraw"]).required(true)
))]
pub(crate) struct Invite {
    /// Start the destination's QEMU with the command line in FILE
    ///
    /// The file has the words of one command. {name} is the guest's name, {qmp} the path of the QMP
    /// socket.
    #[arg(verbatim_doc_comment, long, value_name = "FILE", help_heading = CONNECTION)]
    pub template: Option<PathBuf>,

    /// Name of the guest, for files, messages and {name} in the template
    ///
    /// [default: a new one]
    #[arg(verbatim_doc_comment,
        long,
        value_name = "NAME",
        value_parser = super::guest_name::parse,
        help_heading = CONNECTION
    )]
    pub name: Option<String>,

    /// The libvirt daemon that gets the guest, such as qemu:///system
    #[arg(long, value_name = "URI", help_heading = CONNECTION)]
    pub connect: Option<String>,

    /// QMP socket of a QEMU process that waits for the guest
    #[arg(long, value_name = "PATH", help_heading = CONNECTION)]
    pub qmp: Option<PathBuf>,

    /// How long the invitation is valid, if no source uses it [default: 15m]
    #[arg(
        long,
        value_name = "DURATION",
        value_parser = durations::parse,
        help_heading = CONNECTION
    )]
    pub wait_for: Option<Duration>,

    /// Another option of `receive` for this guest; can be repeated
    ///
    /// With "=", as in --receive-option=--allow-overcommit.
    #[arg(verbatim_doc_comment,
        long = "receive-option",
        value_name = "OPTION",
        allow_hyphen_values = true,
        help_heading = CONNECTION
    )]
    pub options: Vec<String>,

    /// Withdraw the invitation of the guest NAME, whose source has not connected
    ///
    /// The QEMU that was started for it ends.
    #[arg(verbatim_doc_comment,
        long,
        value_name = "NAME",
        value_parser = super::guest_name::parse,
        conflicts_with_all = ["name", "wait_for", "options"],
        help_heading = CONNECTION
    )]
    pub withdraw: Option<String>,

    /// Write the result to FILE as one JSON object
    ///
    /// The name and the invitation, or the reason why there is none. With "-" it is written to
    /// standard output, instead of the invitation.
    #[arg(verbatim_doc_comment, long, value_name = "FILE", help_heading = OUTPUT)]
    pub json: Option<PathBuf>,

    #[command(flatten)]
    pub journals: JournalFolder,
}

impl Invite {
    /// Whether standard output has the result only.
    pub(crate) fn has_json_on_stdout(&self) -> bool {
        self.json.as_deref() == Some("-".as_ref())
    }
}
