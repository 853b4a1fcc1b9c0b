//! Why a run ended, and who has the guest, as codes for programs.
//!
//! `docs/json.md` lists them. They are a contract: a code keeps its meaning, and new codes may be
//! added.

use hikkoshi_engine::destination::DestinationFailure;
use hikkoshi_engine::source::SourceFailure;
use hikkoshi_handover::Outcome;
use hikkoshi_link::{LinkError, WaitEnded};
use serde::{Serialize, Serializer};

/// Defines [`Reason`] with its codes and their documented meanings.
macro_rules! reasons {
    ($($name:ident $code:literal $meaning:literal,)*) => {
        /// Why a run ended.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(crate) enum Reason {
            $(#[doc = $meaning] $name,)*
        }

        impl Reason {
            /// The code, as in `docs/json.md`.
            pub(crate) const fn code(self) -> &'static str {
                match self {
                    $(Self::$name => $code,)*
                }
            }

            /// All codes.
            pub(crate) const CODES: &[&str] = &[$($code,)*];

            /// All codes with their meanings.
            #[cfg(test)]
            const ALL: &[(&str, &str)] = &[$(($code, $meaning),)*];
        }
    };
}

reasons! {
    Moved "moved" "The guest was moved.",
    ShutDown "shut_down" "The guest was handed over, and has shut down at the destination.",
    Usage "usage" "The command line or an environment variable is invalid.",
    Credentials "credentials" "An invitation, certificate or key cannot be used.",
    EncryptionNeeded "encryption_needed" "The address is on another host, and neither encryption nor `--plaintext` was requested.",
    CannotListen "cannot_listen" "hikkoshi cannot listen on the address given with `--listen`.",
    ConfirmationNeeded "confirmation_needed" "`--give-up` needs `--other-side-is-lost` here.",
    NoJournal "no_journal" "There is no journal of an unfinished migration to resume.",
    JournalAmbiguous "journal_ambiguous" "There are several journals to resume from. Name one.",
    JournalBusy "journal_busy" "Another hikkoshi is working on the journal.",
    Journal "journal" "A journal cannot be read or written.",
    Unfinished "unfinished" "An earlier migration of this guest, or into this QEMU, is not finished.",
    NotAttached "not_attached" "QEMU cannot be accessed, or its guest cannot be moved as it is.",
    Unsupported "unsupported" "This host's kernel or this guest does not support the requested mode.",
    System "system" "The system refused something that hikkoshi needs: a thread, a process, a signal handler.",
    Remote "remote" "`hikkoshi receive` could not be started at the destination (`--ssh`), or its `hikkoshi daemon` has refused (`--name`).",
    Connect "connect" "The source could not connect to the destination.",
    Refused "refused" "The destination refused the guest.",
    Link "link" "A link between the hosts failed or timed out.",
    Protocol "protocol" "The other side violated the protocol.",
    Qemu "qemu" "QEMU failed or refused to do something.",
    QemuEnded "qemu_ended" "This side's QEMU has ended.",
    Memory "memory" "The guest's memory could not be read, written or filled.",
    DirtyLog "dirty_log" "The dirty log failed.",
    DeviceState "device_state" "The device state arrived damaged.",
    NotConverging "not_converging" "Pre-copy does not converge, and `--when-stalled stop` was given.",
    PeerFailed "peer_failed" "The other side failed. Its message is in `message`.",
    PeerCancelled "peer_cancelled" "The other side was cancelled.",
    Cancelled "cancelled" "A signal cancelled this side.",
    NoSource "no_source" "No source connected within `--wait-for`.",
    ReaderGone "reader_gone" "No process that needs the destination is left, and no source has connected: the reader of the invitation on standard output, the session of `migrate --ssh`, or the source that had asked has ended, or the invitation was withdrawn.",
    Interrupted "interrupted" "An earlier hikkoshi was killed before the guest was handed over.",
    Declined "declined" "The destination never ran the guest and never will.",
    GuestLost "guest_lost" "The destination's QEMU ended in post-copy, and the guest with it.",
    MemoryLost "memory_lost" "The source's QEMU ended in post-copy, and its private memory with pages that the destination needs.",
    GivenUp "given_up" "The migration was given up with `--give-up`.",
    AccountNotWritten "account_not_written" "The guest was moved, but the result could not be written.",
    Daemon "daemon" "`hikkoshi invite` got no invitation from the `hikkoshi daemon` of this host.",
    NameTaken "name_taken" "The `hikkoshi daemon` of this host receives or awaits a guest of this name.",
    Full "full" "The `hikkoshi daemon` of this host receives or awaits as many guests as it may.",
}

impl Reason {
    fn of_link(error: &LinkError) -> Self {
        match error {
            LinkError::Closed | LinkError::Io(_) | LinkError::TooSlow => Self::Link,
            LinkError::Malformed(_) | LinkError::Control(_) | LinkError::Protocol(_) => {
                Self::Protocol
            }
            LinkError::Stopped => Self::Cancelled,
        }
    }
}

impl Serialize for Reason {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.code())
    }
}

/// Who has the guest: the side that runs it, or may let it run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Holder {
    /// The source. It runs there, or `next` says why not.
    Source,
    /// The destination. With status 3, pages may be missing there.
    Destination,
    /// One of the two; this side does not know which, and resuming decides.
    Undecided,
    /// Neither: it has ended.
    Nobody,
    /// Not known to this run.
    Unknown,
}

impl From<Outcome> for Holder {
    fn from(outcome: Outcome) -> Self {
        match outcome {
            Outcome::AtSource | Outcome::Stopped | Outcome::Declined => Self::Source,
            Outcome::Paused => Self::Undecided,
            Outcome::AtDestination => Self::Destination,
            Outcome::Lost => Self::Nobody,
        }
    }
}

impl From<&SourceFailure> for Reason {
    fn from(failure: &SourceFailure) -> Self {
        match failure {
            SourceFailure::Bandwidth(_) => Self::Usage,
            SourceFailure::Connect { .. } => Self::Connect,
            SourceFailure::Refused(_) => Self::Refused,
            SourceFailure::Link { cause, .. } => Self::of_link(cause),
            SourceFailure::DiskStalled { .. } => Self::of_link(&LinkError::TooSlow),
            // The reason why the links were lost. The message says why reconnecting failed.
            SourceFailure::ReconnectTimedOut { lost, .. } => Self::from(&**lost),
            SourceFailure::Guest(_) | SourceFailure::PausedTooLong { .. } => Self::Qemu,
            SourceFailure::Ram(_) => Self::Memory,
            SourceFailure::DirtyLog(_) => Self::DirtyLog,
            SourceFailure::Destination(_) => Self::PeerFailed,
            SourceFailure::Cancelled => Self::Cancelled,
            SourceFailure::CancelledByDestination(_) => Self::PeerCancelled,
            SourceFailure::NotConverging { .. } => Self::NotConverging,
            SourceFailure::Declined(_) => Self::Declined,
            SourceFailure::GuestLost(_) => Self::GuestLost,
            SourceFailure::MemoryLost { .. } => Self::MemoryLost,
            SourceFailure::Interrupted => Self::Interrupted,
            SourceFailure::Journal(_) => Self::Journal,
            SourceFailure::Thread(_) | SourceFailure::ThreadDied => Self::System,
        }
    }
}

impl From<&DestinationFailure> for Reason {
    fn from(failure: &DestinationFailure) -> Self {
        match failure {
            DestinationFailure::Link { cause, .. } => Self::of_link(cause),
            DestinationFailure::Guest(_) => Self::Qemu,
            DestinationFailure::Memory(_)
            | DestinationFailure::Staging { .. }
            | DestinationFailure::Install(_)
            | DestinationFailure::Presence(_)
            | DestinationFailure::Faults(_)
            | DestinationFailure::Register(_) => Self::Memory,
            DestinationFailure::ProcessGone { .. } => Self::QemuEnded,
            DestinationFailure::DeviceState(_) => Self::DeviceState,
            DestinationFailure::Cancelled => Self::Cancelled,
            DestinationFailure::CancelledBySource(_) => Self::PeerCancelled,
            DestinationFailure::SourceEnded | DestinationFailure::SourceMemoryLost(_) => {
                Self::MemoryLost
            }
            DestinationFailure::Interrupted => Self::Interrupted,
            DestinationFailure::Journal(_) => Self::Journal,
            DestinationFailure::NoSource(WaitEnded::TimedOut(_)) => Self::NoSource,
            DestinationFailure::NoSource(
                WaitEnded::InvitationReaderGone
                | WaitEnded::SessionEnded
                | WaitEnded::SourceGone
                | WaitEnded::Withdrawn,
            ) => Self::ReaderGone,
            DestinationFailure::Listen(_) => Self::CannotListen,
            DestinationFailure::Thread(_) | DestinationFailure::ThreadDied => Self::System,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DOCUMENT: &str = include_str!("../../../../docs/json.md");
    const GUIDE: &str = include_str!("../../../../docs/operating.md");
    const SCHEMA: &str = include_str!("../../../../docs/assets/schemas/json.schema.json");

    #[test]
    fn every_reason_is_documented() {
        let table: String = Reason::ALL
            .iter()
            .map(|(code, meaning)| format!("| `{code}` | {meaning} |\n"))
            .collect();
        assert!(
            DOCUMENT.contains(&table),
            "docs/json.md must have:\n{table}"
        );
        let codes: Vec<_> = Reason::ALL.iter().map(|(code, _)| *code).collect();
        let schema: serde_json::Value = serde_json::from_str(SCHEMA).unwrap();
        assert_eq!(
            schema["$defs"]["end"]["properties"]["reason"]["enum"],
            serde_json::json!(codes)
        );
    }

    /// An operator finds what to do for each reason, and for each exit status.
    #[test]
    fn every_reason_is_in_the_operators_guide() {
        let section = |heading: &str| {
            let (_, rest) = GUIDE.split_once(heading).unwrap();
            rest.split("\n#").next().unwrap()
        };
        let rows: String = section("\n### By reason\n")
            .lines()
            .filter_map(|line| line.strip_prefix("| ")?.split(" | ").next())
            .collect();
        for code in Reason::CODES {
            assert!(rows.contains(&format!("`{code}`")), "{code}");
        }
        let statuses = section("\n### By status\n");
        for status in 1..=4 {
            assert!(statuses.contains(&format!("\n**{status}**")), "{status}");
        }
    }
}
