//! `hikkoshi receive`.

use std::num::{NonZeroU16, NonZeroU64};
use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgGroup, Args};
use hikkoshi_engine::DestinationOptions;
use hikkoshi_engine::destination::MAX_FAULT_THREADS;
use hikkoshi_link::Address;
use hikkoshi_qemu::Overcommit;

use super::headings::{CONNECTION, MIGRATION, SECURITY, TUNING};
use super::incoming_domain::IncomingDomain;
use super::journaled_options::JournaledOptions;
use super::latency_options::LatencyOptions;
use super::run_options::RunOptions;
use super::{bytes, durations};

/// Options for receiving one guest, which a daemon does not have.
const OF_ONE_GUEST: [&str; 25] = [
    "qmp",
    "connect",
    "only_domain",
    "changes",
    "xml",
    "allow_qemu_arguments",
    "template",
    "name",
    "resume",
    "give_up",
    "other_side_is_lost",
    "journal_link",
    "plaintext",
    "invite",
    "wait_for",
    "allow_overcommit",
    "allow_device",
    "stall_timeout",
    "retry_for",
    "fault_threads",
    "collapse",
    "json",
    "report",
    "progress",
    "verbose",
];

#[derive(Debug, Clone, Args)]
#[command(
    override_usage = "hikkoshi receive [OPTIONS] <--qmp|--connect|--template|--daemon|--resume>"
)]
#[command(group(
    ArgGroup::new("destination")
        .args(["qmp", "connect", "template", "daemon", "resume"])
        .required(true).multiple(true)
), group(
    ArgGroup::new("machine_of_template").args(["template", "resume"]).multiple(true)
), group(
    // The manual pages have the group, without its hidden option.
    ArgGroup::new("in_session").args(["ssh_session"])
))]
pub(crate) struct Receive {
    /// Address to listen on: HOST:PORT or unix:PATH
    ///
    /// With --resume, the default is the address in the journal. With --daemon, the default is the
    /// socket that systemd has passed (LISTEN_FDS).
    #[arg(verbatim_doc_comment,
        long,
        value_name = "ADDR",
        required_unless_present_any = ["resume", "in_session", "daemon"],
        help_heading = CONNECTION
    )]
    pub listen: Option<Address>,

    #[command(flatten)]
    pub domain: IncomingDomain,

    /// Start the destination's QEMU with the command line in FILE
    ///
    /// The file has the words of one command, which may be on several lines; ' and " group words.
    /// {name} is the guest's name, {qmp} the path of the QMP socket. `-incoming defer` is added,
    /// and `-qmp` if there is no {qmp}. QEMU is ended if the guest stays at the source.
    #[arg(verbatim_doc_comment,
        long,
        value_name = "FILE",
        conflicts_with_all = ["qmp", "connect", "resume"],
        help_heading = CONNECTION
    )]
    pub template: Option<PathBuf>,

    /// Name of the guest of --template [default: guest]
    ///
    /// With --resume: the guest whose machine was started from a template by this name.
    #[arg(verbatim_doc_comment,
        long,
        value_name = "NAME",
        requires = "machine_of_template",
        conflicts_with = "qmp",
        value_parser = super::guest_name::parse,
        help_heading = CONNECTION
    )]
    pub name: Option<String>,

    /// Receive any number of guests, by invitations of `hikkoshi invite` or by certificates
    ///
    /// Certificates: --admit. Options for receiving one guest are given with its invitation
    /// (`hikkoshi invite --receive-option`).
    #[arg(verbatim_doc_comment,
        long,
        conflicts_with_all = OF_ONE_GUEST,
        help_heading = CONNECTION
    )]
    pub daemon: bool,

    /// With --daemon: how many guests may be received or awaited at a time [default: 64]
    ///
    /// none: 65535. Each needs 2 open files.
    #[arg(verbatim_doc_comment,
        long,
        value_name = "N",
        value_parser = parse_max_guests,
        requires = "daemon",
        help_heading = CONNECTION
    )]
    pub max_guests: Option<u16>,

    /// Address to put into the invitation instead of the one listened on
    #[arg(
        long,
        value_name = "ADDR",
        conflicts_with_all = ["plaintext", "resume"],
        help_heading = CONNECTION
    )]
    pub advertise: Option<Address>,

    /// End if no source has connected within this time, such as 60s
    ///
    /// The exit status is 1 then. By default, wait until a source connects. If the invitation was
    /// written to a pipe, waiting also ends when no process reads from the pipe any more.
    #[arg(verbatim_doc_comment,
        long,
        value_name = "DURATION",
        value_parser = durations::parse,
        conflicts_with = "resume",
        help_heading = CONNECTION
    )]
    pub wait_for: Option<Duration>,

    /// Receive the guest even if it may not fit into this host's free memory
    ///
    /// Free memory counts swap space and the limits of QEMU's memory cgroup. If memory runs out
    /// before the handover, the guest stays at the source; after it, the guest waits for memory, or
    /// the kernel ends its QEMU, and the guest is lost.
    #[arg(verbatim_doc_comment,
        long,
        conflicts_with = "resume",
        help_heading = MIGRATION
    )]
    pub allow_overcommit: bool,

    #[command(flatten)]
    pub options: ReceiveOptions,

    /// Encrypt and print an invitation even if listening on a local address
    ///
    /// The invitation is one line on standard output (on standard error with --json -). Without
    /// this option it is printed when listening beyond this host, unless --plaintext or
    /// --tls-ca is given.
    #[arg(verbatim_doc_comment,
        long,
        conflicts_with_all = ["plaintext", "tls_ca", "resume"],
        help_heading = SECURITY
    )]
    pub invite: bool,

    /// With --daemon: which certificates may send which guests, and what receives them
    ///
    /// A line of FILE is a name in the source's certificate, a name of a guest, and options of
    /// `hikkoshi invite`, as in: host1.example web* --template /etc/hikkoshi/web.template. "*" is
    /// any certificate, or the end of any name; {name} in the options is the guest's name. The
    /// first line that fits is used. The source names the guest (`migrate --name`). FILE is read
    /// for each guest.
    #[arg(verbatim_doc_comment,
        long,
        value_name = "FILE",
        requires_all = ["daemon", "tls_ca"],
        help_heading = SECURITY
    )]
    pub admit: Option<PathBuf>,

    /// With --admit: how many guests of one certificate may be received or awaited at a time
    ///
    /// none: as many as --max-guests. [default: half of --max-guests]
    #[arg(verbatim_doc_comment,
        long,
        value_name = "N",
        value_parser = parse_max_guests,
        requires = "admit",
        help_heading = SECURITY
    )]
    pub max_guests_per_certificate: Option<u16>,

    /// Receive the guest of the `hikkoshi migrate --ssh` at the other end of this session
    ///
    /// Prints an invitation, or with --resume a line when it listens. Ends when standard input ends
    /// before a source has connected; later the end of the session changes nothing.
    #[arg(verbatim_doc_comment,
        long,
        hide = true,
        conflicts_with_all = ["plaintext", "tls_ca", "json", "give_up", "daemon"]
    )]
    pub ssh_session: bool,

    /// SSH_CONNECTION of the session, from the shell that has started this: sudo may remove it
    #[arg(long, value_name = "TEXT", hide = true, requires = "ssh_session")]
    pub ssh_connection: Option<String>,

    /// Started by `receive --daemon`, for the guest of this name
    #[arg(long, value_name = "NAME", hide = true, value_parser = super::guest_name::parse)]
    pub receiver: Option<String>,

    /// The limit of open files that this process gets again: its daemon has raised its own
    #[arg(long, value_name = "N", hide = true, requires = "receiver")]
    pub open_files: Option<u64>,

    #[command(flatten)]
    pub run: RunOptions,
}

/// Options of `receive` that are kept in the journal.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args)]
pub(crate) struct ReceiveOptions {
    #[command(flatten)]
    pub journaled: JournaledOptions,

    /// Threads that handle the guest's page faults
    ///
    /// [default: depends on the guest's vCPUs and on this host's CPUs]
    #[arg(verbatim_doc_comment,
        long,
        value_name = "N",
        value_parser = clap::value_parser!(u16).range(1..=i64::from(MAX_FAULT_THREADS)),
        help_heading = TUNING
    )]
    pub fault_threads: Option<u16>,

    /// Rebuild transparent huge pages after the migration, at most at RATE
    ///
    /// A second, with the units of --bandwidth; none: as fast as possible; default 1G.
    #[arg(verbatim_doc_comment,
        long,
        value_name = "RATE",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "1G",
        value_parser = parse_collapse,
        help_heading = TUNING
    )]
    pub collapse: Option<u64>,

    #[command(flatten)]
    pub latency: LatencyOptions,
}

/// Parses a number of guests, or `none`: the most that can be set.
fn parse_max_guests(text: &str) -> Result<u16, String> {
    match text {
        "none" => Ok(u16::MAX),
        number => number.parse().map_err(|_| {
            format!(
                "'{text}' is not a number of guests up to {}, or none",
                u16::MAX
            )
        }),
    }
}

/// Parses a rate, or `none`: no limit.
fn parse_collapse(text: &str) -> Result<u64, String> {
    match text {
        "none" => Ok(u64::MAX),
        rate => bytes::parse(rate).map_err(|error| format!("{error}; or none, for no limit")),
    }
}

impl Receive {
    /// The same command with the options that were given `earlier`, where they are not given now.
    #[must_use]
    pub(crate) fn resumed(mut self, earlier: ReceiveOptions, plaintext: bool) -> Self {
        self.options = self.options.or(earlier);
        self.run.security.plaintext |= plaintext;
        self
    }

    /// Whether the host may have too little free memory.
    pub(crate) fn overcommit(&self) -> Overcommit {
        match self.allow_overcommit {
            true => Overcommit::Allow,
            false => Overcommit::Refuse,
        }
    }

    /// The engine's options.
    pub(crate) fn engine_options(&self) -> DestinationOptions {
        let options = &self.options;
        DestinationOptions {
            fault_threads: options.fault_threads.and_then(NonZeroU16::new),
            poll: options.latency.poll,
            priority: options.latency.priority(),
            collapse: options.collapse.and_then(NonZeroU64::new),
            retry_for: options.journaled.retry_for(),
            stall_timeout: options.journaled.stall_timeout(),
            peer_timeout: DestinationOptions::DEFAULT_PEER_TIMEOUT,
        }
    }
}

impl ReceiveOptions {
    /// These options, and where one was not given, that of `earlier`.
    #[must_use]
    pub(crate) fn or(self, earlier: Self) -> Self {
        Self {
            journaled: self.journaled.or(earlier.journaled),
            fault_threads: self.fault_threads.or(earlier.fault_threads),
            collapse: self.collapse.or(earlier.collapse),
            latency: self.latency.or(&earlier.latency),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Args as CommandLine, Command};
    use clap::error::ErrorKind;
    use clap::{CommandFactory, Parser};
    use hikkoshi_engine::{Priority, RetryFor};

    fn receive(words: &str) -> Receive {
        let all = ["hikkoshi", "receive"].into_iter();
        match CommandLine::parse_from(all.chain(words.split_whitespace())).command {
            Command::Receive(receive) => *receive,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn options_reach_the_engine() {
        let options =
            |more: &str| receive(&format!("--listen unix:/s --qmp /q {more}")).engine_options();
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
        let overcommit =
            |more: &str| receive(&format!("--listen unix:/s --qmp /q {more}")).overcommit();
        assert_eq!(overcommit(""), Overcommit::Refuse);
        assert_eq!(overcommit("--allow-overcommit"), Overcommit::Allow);
    }

    #[test]
    fn a_daemon_can_have_as_many_guests_as_can_be_counted() {
        for (text, guests) in [
            ("1", Some(1)),
            ("none", Some(u16::MAX)),
            ("65536", None),
            ("", None),
        ] {
            assert_eq!(parse_max_guests(text).ok(), guests, "{text:?}");
        }
    }

    #[test]
    fn a_daemon_has_no_option_of_one_guest() {
        let own = [
            "listen",
            "daemon",
            "max_guests",
            "advertise",
            "admit",
            "max_guests_per_certificate",
            "tls_ca",
            "tls_cert",
            "tls_key",
            "journal",
            "help",
        ];
        let all = CommandLine::command();
        let receive = all.find_subcommand("receive").unwrap();
        for arg in receive.get_arguments().filter(|arg| !arg.is_hide_set()) {
            let id = arg.get_id().as_str();
            assert_ne!(own.contains(&id), OF_ONE_GUEST.contains(&id), "{id}");
        }
        let words = ["hikkoshi", "receive", "--daemon", "--retry-for=5"];
        let refused = CommandLine::try_parse_from(words).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ArgumentConflict);
    }

    #[test]
    fn earlier_options_hold_after_resume() {
        let first = receive("--listen unix:/s --qmp /q --collapse --poll --stall-timeout 7");
        let resumed = receive("--resume --fault-threads=2").resumed(first.options, false);
        let options = resumed.engine_options();
        assert_eq!(options.collapse.map(NonZeroU64::get), Some(1_000_000_000));
        assert_eq!(options.stall_timeout, Duration::from_secs(7));
        assert_eq!(options.fault_threads, NonZeroU16::new(2));
        assert!(options.poll);
    }
}
