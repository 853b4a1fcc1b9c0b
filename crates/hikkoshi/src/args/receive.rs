//! `hikkoshi receive`.

use clap::{ArgGroup, Args};
use hikkoshi_link::Address;

use super::advertised_address::AdvertisedAddress;
use super::headings::{CONNECTION, SECURITY};
use super::incoming_guest::{IncomingGuest, TemplateName};
use super::output_options::OutputOptions;
use super::recovery::{GiveUpOptions, RecoveryOptions};
use super::security::Security;

#[derive(Debug, Clone, Args)]
#[command(override_usage = "hikkoshi receive [OPTIONS] <--qmp|--connect|--template|--resume>")]
#[command(group(
    ArgGroup::new("invited")
        .args(["advertise", "invite"])
        .multiple(true)
        .conflicts_with_all(["plaintext", "tls_ca", "resume"])
))]
pub(crate) struct Receive {
    /// Address to listen on: HOST:PORT or unix:PATH
    ///
    /// With --resume, the default is the address in the journal.
    #[arg(verbatim_doc_comment,
        long,
        value_name = "ADDR",
        required_unless_present = "resume",
        help_heading = CONNECTION
    )]
    pub listen: Option<Address>,

    #[command(flatten)]
    pub guest: IncomingGuest,

    #[command(flatten)]
    pub template: TemplateName,

    #[command(flatten)]
    pub address: AdvertisedAddress,

    /// Encrypt and print an invitation even if listening on a local address
    ///
    /// The invitation is one line on standard output (on standard error with --json -). Without
    /// this option it is printed when listening beyond this host, unless --plaintext or
    /// --tls-ca is given.
    #[arg(verbatim_doc_comment, long, help_heading = SECURITY)]
    pub invite: bool,

    #[command(flatten)]
    pub security: Security,

    #[command(flatten)]
    pub recovery: RecoveryOptions,

    #[command(flatten)]
    pub give_up: GiveUpOptions,

    #[command(flatten)]
    pub output: OutputOptions,

    #[arg(skip)]
    pub started_by: StartedBy,
}

/// What has started a process that receives one guest.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) enum StartedBy {
    /// `hikkoshi receive`: an operator, or another program.
    #[default]
    Operator,
    /// `hikkoshi ssh-session`: the source.
    Source,
    /// `hikkoshi receiver`: the daemon of this host, for the guest of this name.
    Daemon(String),
}

impl Receive {
    /// The guest's name, if a daemon has started this process for it.
    pub(crate) fn name_for_daemon(&self) -> Option<&str> {
        match &self.started_by {
            StartedBy::Daemon(name) => Some(name),
            StartedBy::Operator | StartedBy::Source => None,
        }
    }

    /// Whether `migrate --ssh` has started this process.
    pub(crate) fn is_in_session(&self) -> bool {
        self.started_by == StartedBy::Source
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Args as CommandLine, Command};
    use clap::Parser;
    use hikkoshi_engine::{DestinationOptions, Priority, RetryFor};
    use hikkoshi_qemu::Overcommit;
    use std::num::{NonZeroU16, NonZeroU64};
    use std::time::Duration;

    fn receive(words: &str) -> Receive {
        let all = ["hikkoshi", "receive"].into_iter();
        match CommandLine::parse_from(all.chain(words.split_whitespace())).command {
            Command::Receive(receive) => *receive,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn options_reach_the_engine() {
        let options = |more: &str| {
            let receive = receive(&format!("--listen unix:/s --qmp /q {more}"));
            receive.guest.engine_options(&receive.guest.options())
        };
        let by_mode = DestinationOptions {
            retry_for: RetryFor::BY_MODE,
            ..DestinationOptions::default()
        };
        assert_eq!(options(""), by_mode);
        assert_eq!(options("--retry-for 0"), DestinationOptions::default());
        let rate = |more| options(more).collapse.map(NonZeroU64::get);
        assert_eq!(rate("--collapse"), Some(1_000_000_000));
        assert_eq!(rate("--collapse=5M"), Some(5_000_000));
        assert_eq!(rate("--collapse=none"), Some(u64::MAX));
        let all = options("--fault-threads 3 --poll --no-priority");
        assert_eq!(all.fault_threads, NonZeroU16::new(3));
        assert!(all.poll && all.priority == Priority::OFF && all.collapse.is_none());
    }

    #[test]
    fn too_little_memory_is_allowed_only_by_its_option() {
        let overcommit = |more: &str| {
            receive(&format!("--listen unix:/s --qmp /q {more}"))
                .guest
                .overcommit()
        };
        assert_eq!(overcommit(""), Overcommit::Refuse);
        assert_eq!(overcommit("--allow-overcommit"), Overcommit::Allow);
    }

    #[test]
    fn earlier_options_hold_after_resume() {
        let first = receive("--listen unix:/s --qmp /q --collapse --poll --stall-timeout 7");
        let resumed = receive("--resume --fault-threads=2").guest;
        let options = resumed.engine_options(&resumed.options_over(&first.guest.options()));
        assert_eq!(options.collapse.map(NonZeroU64::get), Some(1_000_000_000));
        assert_eq!(options.stall_timeout, Duration::from_secs(7));
        assert_eq!(options.fault_threads, NonZeroU16::new(2));
        assert!(!options.poll, "only for a measurement");
    }
}
