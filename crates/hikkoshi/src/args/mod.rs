//! The command line.

mod bytes;
mod durations;
pub mod output_options;

use std::ffi::{OsStr, OsString};
use std::num::{NonZeroU16, NonZeroU64};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::builder::TypedValueParser;
use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{
    ArgMatches, Args as ClapArgs, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum,
};
use hikkoshi_engine::destination::MAX_FAULT_THREADS;
use hikkoshi_engine::{
    DestinationOptions, MAX_LINKS, Mode, Observer, Priority, ReadAhead, RetryFor, SourceOptions,
    WhenStalled,
};
use hikkoshi_link::Address;
use hikkoshi_link::tls::Invitation;

use hikkoshi_qemu::AllowedTypes;

use crate::journal;
use crate::output::exit::{Exit, Status};
use crate::output::reason::Reason;
use crate::security::{Security, To};

/// Moves a running virtual machine to another host.
///
/// Exit status: 0 the guest runs at the destination and every page is there;
/// 1 it still runs at the source; 2 bad usage; 3 it was handed over, and that is
/// not finished: nothing of it is lost, and --resume continues; 4 the guest is
/// lost: the destination's QEMU ended in post-copy. HIKKOSHI_LOG=debug (off, error,
/// warn, info, debug, trace; hikkoshi_qemu=debug for one crate) tells more.
#[derive(Debug, Parser)]
#[command(version, max_term_width = 100)]
pub struct Args {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Wait at the destination for a guest and take it in.
    Receive(Receive),
    /// Move a running guest to a destination.
    Migrate(Migrate),
    /// Move a test guest between two QEMU processes on this machine.
    Demo(Demo),
    /// Watch over a migration's source (started by `migrate`).
    #[command(hide = true)]
    Guard(Guard),
}

impl Command {
    fn common(&self) -> Option<&Common> {
        match self {
            Self::Receive(receive) => Some(&receive.common),
            Self::Migrate(migrate) => Some(&migrate.common),
            Self::Demo(_) | Self::Guard(_) => None,
        }
    }

    /// Whether it is one side of a migration.
    pub fn moves(&self) -> bool {
        self.common().is_some()
    }

    /// Whether standard error is read by a program.
    pub fn in_json(&self) -> bool {
        match self {
            Self::Guard(guard) => guard.json,
            _ => self
                .common()
                .is_some_and(|common| common.progress == ProgressKind::Json),
        }
    }

    /// The file of `--json`.
    pub fn account(&self) -> Option<&Path> {
        self.common()?.json.as_deref()
    }
}

/// What both sides have.
#[derive(Debug, ClapArgs)]
pub struct Common {
    /// QMP socket of the QEMU process
    #[arg(long, value_name = "PATH", required_unless_present = "resume")]
    pub qmp: Option<PathBuf>,

    /// Go on with a migration whose links were lost or whose hikkoshi was
    /// killed: the one that JOURNAL tells of, or the last one of --qmp
    #[arg(long, value_name = "JOURNAL", num_args = 0..=1, require_equals = true)]
    #[allow(clippy::option_option)] // As clap tells the three cases apart.
    pub resume: Option<Option<PathBuf>>,

    /// Do not go on with it: tells what that means, and does it once
    /// --other-side-is-lost confirms it. At the source the guest runs on as it was
    /// when it was stopped, which it must not on disks of a later moment; at the
    /// destination it ends
    #[arg(long, requires = "resume")]
    pub give_up: bool,

    /// Confirms --give-up: nobody on the other side runs the guest, or will
    #[arg(long, requires = "give_up")]
    pub other_side_is_lost: bool,

    /// Folder for what --resume needs [default: /run/hikkoshi, for ordinary
    /// users $XDG_RUNTIME_DIR/hikkoshi]
    #[arg(long, value_name = "DIR")]
    pub journal: Option<PathBuf>,

    /// Once the guest may run at the destination: for how long to try again by
    /// itself when links are lost (such as 0, 90, 90s, 15m, 2h); time with links
    /// makes up for as much time without [default: 15m where the migration ends in
    /// post-copy, otherwise 0]
    #[arg(long, value_name = "DURATION", value_parser = durations::parse)]
    pub retry_for: Option<Duration>,

    /// Move a guest although it has a device, network backend or block driver
    /// that this version does not know. Pages that it writes past QEMU's page
    /// tables are lost; may be said several times
    #[arg(long, value_name = "TYPE")]
    pub allow_device: Vec<String>,

    /// How long a link may stall before it counts as lost
    #[arg(long, value_name = "DURATION", default_value = "20s", value_parser = durations::parse_stall)]
    pub stall_timeout: Duration,

    /// Write one JSON object to FILE at the end ("-": standard output, and then an
    /// invitation goes to standard error): the account, or "error" with the reason
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,

    /// Show more in the end: how long page requests took, as a histogram
    #[arg(short, long)]
    pub verbose: bool,

    #[command(flatten)]
    pub security: Security,

    /// What to write on standard error while it runs
    #[arg(long, value_enum, default_value_t = ProgressKind::Auto)]
    pub progress: ProgressKind,

    /// What was chosen on the command line of how to go about it, each as a
    /// word that can be given again: it goes into the journal.
    #[arg(skip)]
    pub chosen: Vec<String>,
}

/// What is about one run only, or is in the journal in another form.
const NOT_CHOSEN: [&str; 17] = [
    "wait_for",
    "address",
    "to",
    "listen",
    "invite",
    "advertise",
    "qmp",
    "resume",
    "give_up",
    "other_side_is_lost",
    "journal",
    "json",
    "progress",
    "verbose",
    "tls_ca",
    "tls_cert",
    "tls_key",
];

impl Args {
    /// The program's own.
    pub fn of_this_run() -> Result<Self, clap::Error> {
        Self::read(Self::command(), std::env::args_os())
    }

    fn read(
        command: clap::Command,
        words: impl IntoIterator<Item = OsString>,
    ) -> Result<Self, clap::Error> {
        let matches = command.clone().try_get_matches_from(words)?;
        let mut args = Self::from_arg_matches(&matches)?;
        let common = match &mut args.command {
            Command::Receive(receive) => &mut receive.common,
            Command::Migrate(migrate) => &mut migrate.common,
            Command::Demo(_) | Command::Guard(_) => return Ok(args),
        };
        if let Some((name, matches)) = matches.subcommand()
            && let Some(command) = command.find_subcommand(name)
        {
            common.chosen = chosen(command, matches);
        }
        Ok(args)
    }

    /// What `side --resume` goes by: `now` before what was chosen `before`.
    fn again(side: &str, before: &[String], now: &[String]) -> Result<Command, Exit> {
        let words = [env!("CARGO_PKG_NAME"), side, "--resume"];
        let chosen = before.iter().chain(now).map(String::as_str);
        let words = words.into_iter().chain(chosen).map(OsString::from);
        // The last one counts.
        let command = Self::command().args_override_self(true);
        let args = Self::read(command, words).map_err(|error| {
            let what = "reading the journal: the options in it do not go together with those given";
            Exit::new(Status::Usage, Reason::Usage, format!("{what}: {error}"))
        })?;
        Ok(args.command)
    }
}

fn chosen(command: &clap::Command, matches: &ArgMatches) -> Vec<String> {
    let mut words = Vec::new();
    for argument in command.get_arguments() {
        let id = argument.get_id().as_str();
        let given = matches.value_source(id) == Some(ValueSource::CommandLine);
        let Some(name) = argument.get_long() else {
            continue;
        };
        if !given || NOT_CHOSEN.contains(&id) {
            continue;
        }
        if argument.get_action().takes_values() {
            let values = matches.get_raw(id).into_iter().flatten();
            words.extend(values.map(|value| format!("--{name}={}", value.to_string_lossy())));
        } else {
            words.push(format!("--{name}"));
        }
    }
    words
}

impl Common {
    /// The types of devices that the user vouches for.
    pub fn allowed(&self) -> AllowedTypes {
        AllowedTypes::new(self.allow_device.iter().cloned())
    }

    /// Says what `--allow-device` means.
    pub fn warn_of_devices(&self, observer: &dyn Observer) {
        for kind in &self.allow_device {
            observer.notice(&format!(
                "--allow-device {kind}: whether such a device writes to the guest's memory in a \
                 way that hikkoshi does not see is not checked; if it does, the guest loses pages"
            ));
        }
    }

    fn retry_for(&self) -> RetryFor {
        self.retry_for.map_or(RetryFor::BY_MODE, RetryFor::always)
    }

    /// As told now, with what `merged` has from before.
    fn merged(&self, merged: Self, plaintext: bool) -> Self {
        Self {
            qmp: self.qmp.clone(),
            resume: self.resume.clone(),
            give_up: self.give_up,
            other_side_is_lost: self.other_side_is_lost,
            journal: self.journal.clone(),
            json: self.json.clone(),
            progress: self.progress,
            verbose: self.verbose,
            security: Security {
                plaintext,
                tls_ca: self.security.tls_ca.clone(),
                tls_cert: self.security.tls_cert.clone(),
                tls_key: self.security.tls_key.clone(),
            },
            retry_for: merged.retry_for,
            stall_timeout: merged.stall_timeout,
            allow_device: merged.allow_device,
            chosen: merged.chosen,
        }
    }
}

/// What was said before counts; that there need not be encryption only for the
/// host that it was said about: the way to another one may lead through networks
/// that nobody has vouched for. Another port of the same host is the same way.
fn still(before: &[String], same_host: bool) -> Vec<String> {
    let holds = |word: &&String| same_host || *word != "--plaintext";
    before.iter().filter(holds).cloned().collect()
}

/// Whether an address is on the host of one that was written down, in the same words.
fn is_same_host(given: &Address, before: &str) -> bool {
    let host = |address: &Address| address.host().map(str::to_owned);
    journal::written(given) == before
        || before
            .parse::<Address>()
            .is_ok_and(|before| host(&before).is_some() && host(&before) == host(given))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ProgressKind {
    /// A bar on a terminal, otherwise a line every few seconds
    Auto,
    /// One JSON object a line; the last one says how it ended
    Json,
    /// Nothing
    None,
}

#[derive(Debug, ClapArgs)]
pub struct Receive {
    /// Where to listen: HOST:PORT or unix:PATH [with --resume: where it was]
    #[arg(long, value_name = "ADDR", required_unless_present = "resume")]
    pub listen: Option<Address>,

    /// Encrypt and show an invitation on this machine's own addresses, too. It is
    /// a line on standard output (on standard error with --json -)
    #[arg(long, conflicts_with_all = ["plaintext", "tls_ca", "resume"])]
    pub invite: bool,

    /// Give up when no source has come by then (such as 60s), with exit status 1
    /// [default: wait until one comes]. Where the invitation goes to a pipe, it is
    /// given up, too, when nobody reads from that any more
    #[arg(long, value_name = "DURATION", value_parser = durations::parse, conflicts_with = "resume")]
    pub wait_for: Option<Duration>,

    /// The address in the invitation, where a source cannot use what is
    /// listened at
    #[arg(long, value_name = "ADDR", conflicts_with_all = ["plaintext", "tls_ca", "resume"])]
    pub advertise: Option<Address>,

    #[command(flatten)]
    pub common: Common,

    /// Threads that read the guest's page faults (default: by the guest's
    /// processors and this machine's)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=i64::from(MAX_FAULT_THREADS)))]
    pub fault_threads: Option<u16>,

    /// Spin instead of sleeping where the guest waits for a page: lower
    /// latency, at the price of a busy core for each fault thread and one more
    #[arg(long)]
    pub poll: bool,

    /// Do not let the threads that the guest waits for go before the others
    #[arg(long)]
    pub no_priority: bool,

    /// Rebuild transparent huge pages after the move, at most so many bytes a
    /// second (units as for --bandwidth of migrate; 1G if left out)
    #[arg(
        long,
        value_name = "BYTES_PER_S",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "1G",
        value_parser = bytes::parse
    )]
    pub collapse: Option<u64>,
}

impl Receive {
    /// Where to listen.
    pub fn listen(&self) -> Result<&Address, Exit> {
        self.listen.as_ref().ok_or_else(|| {
            // Clap asks for it.
            Exit::new(Status::Usage, Reason::Usage, "--listen ADDR is missing")
        })
    }

    /// The same for a migration that is taken up again, with what was chosen
    /// `before` and is not now; it listened at `address`.
    pub fn after(&self, before: &[String], address: &str) -> Result<Self, Exit> {
        let listen = self.listen.as_ref();
        let same = listen.is_none_or(|listen| is_same_host(listen, address));
        let now = &self.common.chosen;
        match Args::again("receive", &still(before, same), now)? {
            Command::Receive(merged) => Ok(Self {
                listen: self.listen.clone(),
                common: {
                    let plaintext = merged.common.security.plaintext;
                    self.common.merged(merged.common, plaintext)
                },
                ..merged
            }),
            _ => Err(Exit::new(
                Status::Usage,
                Reason::Usage,
                "this is no destination's journal",
            )),
        }
    }

    pub fn options(&self) -> DestinationOptions {
        DestinationOptions {
            fault_threads: self.fault_threads.and_then(NonZeroU16::new),
            poll: self.poll,
            priority: if self.no_priority {
                Priority::OFF
            } else {
                Priority::ON
            },
            collapse: self.collapse.and_then(NonZeroU64::new),
            retry_for: self.common.retry_for(),
            stall_timeout: self.common.stall_timeout,
            patience: DestinationOptions::PATIENCE,
        }
    }
}

#[derive(Debug, ClapArgs)]
pub struct Migrate {
    /// Where `hikkoshi receive` listens: HOST:PORT or unix:PATH [with --resume:
    /// where it did]
    #[arg(value_name = "ADDR", value_parser = DestinationAddress, required_unless_present_any = ["to", "resume"])]
    pub address: Option<Address>,

    /// The invitation that `hikkoshi receive` shows ("-": on standard input)
    #[arg(long, value_name = "INVITATION", conflicts_with_all = ["address", "plaintext", "tls_ca", "resume"])]
    pub to: Option<To>,

    #[command(flatten)]
    pub common: Common,

    /// precopy: memory first; postcopy: the guest first; hybrid: one round of
    /// memory, then the guest, then the rest
    #[arg(long, default_value_t = Mode::Hybrid, value_parser = parse_mode)]
    pub mode: Mode,

    /// The longest the guest may be stopped while its last dirty pages are
    /// sent, in milliseconds (pre-copy)
    #[arg(long, value_name = "MS", default_value_t = 300, value_parser = clap::value_parser!(u64).range(1..=600_000))]
    pub max_downtime: u64,

    /// Move the guest although its processors would be others at the
    /// destination: differences are told, and not refused. A program in the guest
    /// that uses a feature which is missing there is ended. Other accelerators
    /// (KVM, TCG), numbers of processors and APIC IDs are refused all the same
    #[arg(long)]
    pub allow_cpu_mismatch: bool,

    /// Ceiling on background traffic in bytes a second; pages that the guest waits
    /// for are never held back. Units: K, M, G, T or KB … (1000), Ki … or KiB …
    /// (1024), Kbit … (bits); 1.5G, 50MiB and 400Mbit are rates, and only B is a
    /// byte: 50Mb is refused
    #[arg(long, value_name = "BYTES_PER_S", value_parser = bytes::parse)]
    pub bandwidth: Option<u64>,

    /// Rounds before the switch in hybrid mode
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub rounds: u32,

    /// Rounds after which pre-copy counts as not converging
    #[arg(long, value_name = "N", default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..))]
    pub max_rounds: u32,

    /// What to do when pre-copy does not converge
    #[arg(long, value_enum, default_value_t = Stalled::GoOn)]
    pub when_stalled: Stalled,

    /// Background links, each with a connection and a thread of its own at
    /// either side [default: half of this machine's processors, 1 to 8]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=i64::from(MAX_LINKS)))]
    pub links: Option<u16>,

    /// Post-copy: pages to send ahead on either side of one that the guest waits
    /// for: a number (at most 256), "off", or "adaptive": 8, more where it reads
    /// on, fewer where it jumps about
    #[arg(long, value_name = "N", default_value = "adaptive", value_parser = parse_read_ahead)]
    pub read_ahead: ReadAhead,

    /// Post-copy: do not send pages that were written often before the others
    #[arg(long)]
    pub no_hot_first: bool,

    /// Post-copy: do not send pages near the last one that the guest waited for
    /// before the others
    #[arg(long)]
    pub no_follow: bool,

    /// Post-copy: do not bound what is in flight unasked, which pages that the
    /// guest waits for then stand behind (for measuring)
    #[arg(long)]
    pub no_bound: bool,

    /// Post-copy: send nothing but what the guest waits for, and what is sent
    /// ahead of it, for so many milliseconds after the switch (for measuring)
    #[arg(long, value_name = "MS", default_value_t = 0, value_parser = clap::value_parser!(u64).range(..=3_600_000))]
    pub background_delay: u64,

    /// Do not drain the guest's disks in pre-copy rounds. LOSES MEMORY of guests
    /// with direct I/O; for tests and measurements only
    #[arg(long, hide = true)]
    pub no_drain: bool,

    /// Post-copy: spin instead of sleeping while waiting for page requests;
    /// costs a processor
    #[arg(long)]
    pub poll: bool,

    /// Leave all threads at the same priority
    #[arg(long)]
    pub no_priority: bool,
}

/// Reads an address, and knows an invitation, whose secret is neither shown nor
/// looked up as a name.
#[derive(Debug, Clone, Copy)]
struct DestinationAddress;

impl TypedValueParser for DestinationAddress {
    type Value = Address;

    fn parse_ref(
        &self,
        command: &clap::Command,
        arg: Option<&clap::Arg>,
        value: &OsStr,
    ) -> Result<Address, clap::Error> {
        if value.to_string_lossy().starts_with(Invitation::SCHEME) {
            let what = "this is an invitation, not an address: give it with --to\n";
            return Err(clap::Error::raw(ErrorKind::ValueValidation, what).with_cmd(command));
        }
        let address = |text: &str| text.parse::<Address>();
        address.parse_ref(command, arg, value)
    }
}

impl Migrate {
    /// The same for a migration that is taken up again, with what was chosen
    /// `before` and is not now; its destination was at `address`.
    pub fn after(&self, before: &[String], address: &str) -> Result<Self, Exit> {
        let given = self.address.as_ref();
        let same = given.is_none_or(|given| is_same_host(given, address));
        let now = &self.common.chosen;
        match Args::again("migrate", &still(before, same), now)? {
            Command::Migrate(merged) => Ok(Self {
                address: self.address.clone(),
                common: {
                    let plaintext = merged.common.security.plaintext;
                    self.common.merged(merged.common, plaintext)
                },
                ..merged
            }),
            _ => Err(Exit::new(
                Status::Usage,
                Reason::Usage,
                "this is no source's journal",
            )),
        }
    }

    /// The engine's options.
    pub fn options(&self) -> SourceOptions {
        SourceOptions {
            mode: self.mode,
            max_downtime: Duration::from_millis(self.max_downtime),
            bandwidth: self.bandwidth,
            precopy_rounds: self.rounds,
            max_rounds: self.max_rounds,
            when_stalled: self.when_stalled.into(),
            allow_cpu_mismatch: self.allow_cpu_mismatch,
            links: self.links.unwrap_or_else(SourceOptions::default_links),
            drain: !self.no_drain,
            background_delay: Duration::from_millis(self.background_delay),
            read_ahead: self.read_ahead,
            hot_first: !self.no_hot_first,
            follow: !self.no_follow,
            bound: !self.no_bound,
            poll: self.poll,
            priority: if self.no_priority {
                Priority::OFF
            } else {
                Priority::ON
            },
            retry_for: self.common.retry_for(),
            stall_timeout: self.common.stall_timeout,
            patience: SourceOptions::PATIENCE,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Stalled {
    /// Say so and go on
    GoOn,
    /// Switch to post-copy
    Switch,
    /// Give up; the guest runs on at the source
    Stop,
}

impl From<Stalled> for WhenStalled {
    fn from(stalled: Stalled) -> Self {
        match stalled {
            Stalled::GoOn => Self::GoOn,
            Stalled::Switch => Self::Switch,
            Stalled::Stop => Self::Stop,
        }
    }
}

#[derive(Debug, ClapArgs)]
pub struct Demo {
    /// How to move the guest
    #[arg(long, default_value_t = Mode::Hybrid, value_parser = parse_mode)]
    pub mode: Mode,

    /// The guest's memory in MiB; its workload keeps rewriting half of it
    #[arg(long, value_name = "MIB", default_value_t = 512, value_parser = clap::value_parser!(u64).range(256..=16_384))]
    pub memory: u64,

    /// QEMU at both sides: 7.2 or 10.0
    #[arg(long, value_name = "VERSION", default_value = "10.0")]
    pub qemu: String,
}

#[derive(Debug, ClapArgs)]
pub struct Guard {
    /// Where it is written down how far the migration is
    #[arg(long, value_name = "FILE")]
    pub journal: PathBuf,

    /// Write JSON to standard error
    #[arg(long)]
    pub json: bool,
}

fn parse_mode(text: &str) -> Result<Mode, String> {
    text.parse()
}

/// How far to read ahead.
fn parse_read_ahead(text: &str) -> Result<ReadAhead, String> {
    match text {
        "adaptive" => Ok(ReadAhead::Adaptive),
        "off" => Ok(ReadAhead::Off),
        number => match number.parse() {
            Ok(0) => Ok(ReadAhead::Off),
            Ok(pages @ 1..=256) => Ok(ReadAhead::Fixed(pages)),
            _ => Err(format!(
                "'{text}' is no read-ahead; write adaptive, off, or a number of pages up to 256"
            )),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        Args::command().debug_assert();
    }

    #[test]
    fn a_destination_is_known_in_one_way() {
        let parse = |words: &str| {
            let all = ["hikkoshi", "migrate", "--qmp", "/q"].into_iter();
            Args::try_parse_from(all.chain(words.split_whitespace())).is_ok()
        };
        let certificates = "--tls-ca ca --tls-cert crt --tls-key key";
        for good in ["--to -", "--to hikkoshi1:a.b@c:1", "h:1", "h:1 --plaintext"] {
            assert!(parse(good), "{good}");
        }
        assert!(parse(&format!("h:1 {certificates}")));
        for bad in [
            "",
            "hikkoshi1:a.b@c:1",
            "h:1 --to -",
            "--to - --plaintext",
            "h:1 --tls-ca ca",
            "h:1 --tls-key k",
        ] {
            assert!(!parse(bad), "{bad}");
        }
        assert!(!parse(&format!("h:1 --plaintext {certificates}")));
        assert!(!parse(&format!("--to - {certificates}")));
    }

    #[test]
    fn a_secret_in_the_wrong_place_is_not_repeated() {
        for words in ["hikkoshi1:a.secret@c:1", "hikkoshi1:a.secret", "hikkoshi1:"] {
            let all = ["hikkoshi", "migrate", "--qmp", "/q", words];
            let error = Args::try_parse_from(all).unwrap_err().to_string();
            assert!(
                error.contains("--to") && !error.contains("secret"),
                "{error}"
            );
        }
    }

    #[test]
    fn the_contract_parses() {
        let args = Args::parse_from([
            "hikkoshi",
            "migrate",
            "--qmp",
            "/q",
            "10.0.0.2:7000",
            "--mode",
            "postcopy",
            "--max-downtime",
            "50",
            "--bandwidth",
            "1G",
            "--json",
            "out",
            "--plaintext",
        ]);
        let Command::Migrate(migrate) = args.command else {
            panic!()
        };
        assert_eq!(migrate.mode, Mode::Postcopy);
        let options = migrate.options();
        assert_eq!(options.max_downtime, Duration::from_millis(50));
        assert_eq!(options.bandwidth, Some(1_000_000_000));
        assert_eq!(options.links, SourceOptions::default_links());
        assert_eq!(options.read_ahead, ReadAhead::Adaptive);
        assert!(options.hot_first && options.follow && options.bound && !options.poll);
        assert_eq!(options.priority, Priority::ON);
        assert!(migrate.common.security.plaintext);
        let receive = |more: &[&str]| {
            let fixed = ["hikkoshi", "receive", "--listen", "unix:/s", "--qmp", "/q"];
            match Args::parse_from(fixed.iter().chain(more)).command {
                Command::Receive(receive) => receive.options(),
                other => panic!("{other:?}"),
            }
        };
        let by_mode = DestinationOptions {
            retry_for: RetryFor::BY_MODE,
            ..DestinationOptions::default()
        };
        assert_eq!(receive(&[]), by_mode);
        assert_eq!(options.retry_for, RetryFor::BY_MODE);
        let at_once = receive(&["--retry-for", "0"]);
        assert_eq!(at_once, DestinationOptions::default());
        let rate = |more| receive(&[more]).collapse.map(NonZeroU64::get);
        assert_eq!(rate("--collapse"), Some(1_000_000_000));
        assert_eq!(rate("--collapse=5M"), Some(5_000_000));
        let all = receive(&["--fault-threads", "3", "--poll", "--no-priority"]);
        assert_eq!(all.fault_threads, NonZeroU16::new(3));
        assert!(all.poll && all.priority == Priority::OFF && all.collapse.is_none());
    }

    #[test]
    fn what_was_chosen_holds_when_it_is_taken_up_again() {
        let migrate = |words: &str| {
            let all = ["hikkoshi", "migrate"].into_iter();
            let all = all.chain(words.split_whitespace()).map(OsString::from);
            match Args::read(Args::command(), all).unwrap().command {
                Command::Migrate(migrate) => migrate,
                other => panic!("{other:?}"),
            }
        };
        let first = migrate(
            "h:1 --qmp /q --bandwidth 50M --retry-for 90s --links=3 --no-follow --plaintext \
             --json /out --progress none --journal /j --mode postcopy",
        );
        let chosen = &first.common.chosen;
        let all: std::collections::BTreeSet<_> = chosen.iter().map(String::as_str).collect();
        let expected = [
            "--bandwidth=50M",
            "--links=3",
            "--mode=postcopy",
            "--no-follow",
            "--plaintext",
            "--retry-for=90s",
        ];
        assert_eq!(
            all,
            expected.into(),
            "what is about one run only is not kept"
        );
        let again = migrate("--resume=/j/s.json --retry-for 5m --json -");
        let merged = again.after(chosen, "h:1").unwrap();
        let options = merged.options();
        assert_eq!(options.bandwidth, Some(50_000_000));
        assert_eq!(options.links, 3);
        assert_eq!(options.mode, Mode::Postcopy);
        assert!(!options.follow && options.hot_first);
        assert_eq!(
            options.retry_for,
            RetryFor::always(Duration::from_secs(300)),
            "the last one counts"
        );
        assert_eq!(merged.common.resume, Some(Some("/j/s.json".into())));
        assert_eq!(merged.common.json, Some("-".into()));
        assert!(merged.common.security.plaintext);
        // And once more.
        let third = migrate("--resume")
            .after(&merged.common.chosen, "h:1")
            .unwrap();
        assert_eq!(third.options().retry_for, Duration::from_secs(300).into());
        assert_eq!(third.options().links, 3);
        // At another port of that host it need not be said again.
        let port = migrate("h:2 --resume").after(chosen, "h:1").unwrap();
        assert!(port.common.security.plaintext);
        // Elsewhere nobody has said that it need not be encrypted.
        let elsewhere = migrate("other:1 --resume");
        let merged = elsewhere.after(chosen, "h:1").unwrap();
        assert!(!merged.common.security.plaintext);
        assert_eq!(merged.address, Some("other:1".parse().unwrap()));
        assert!(merged.options().bandwidth.is_some());
        // Damaged.
        let odd = ["--bandwidth=fast".to_owned()];
        assert!(migrate("--resume").after(&odd, "h:1").is_err());
    }

    #[test]
    fn so_does_what_the_destination_chose() {
        let receive = |words: &str| {
            let all = ["hikkoshi", "receive"].into_iter();
            let all = all.chain(words.split_whitespace()).map(OsString::from);
            match Args::read(Args::command(), all).unwrap().command {
                Command::Receive(receive) => receive,
                other => panic!("{other:?}"),
            }
        };
        let first = receive("--listen unix:/s --qmp /q --collapse --poll --stall-timeout 7");
        let merged = receive("--resume --fault-threads=2").after(&first.common.chosen, "unix:/s");
        let options = merged.unwrap().options();
        assert_eq!(options.collapse.map(NonZeroU64::get), Some(1_000_000_000));
        assert_eq!(options.stall_timeout, Duration::from_secs(7));
        assert_eq!(options.fault_threads, NonZeroU16::new(2));
        assert!(options.poll);
    }

    #[test]
    fn each_policy_can_be_switched_off() {
        let parse = |more: &[&str]| {
            let always = ["hikkoshi", "migrate", "--qmp", "/q", "unix:/s"];
            let args = Args::try_parse_from(always.iter().chain(more)).ok()?;
            match args.command {
                Command::Migrate(migrate) => Some(migrate.options()),
                _ => None,
            }
        };
        let options = parse(&[
            "--links=16",
            "--read-ahead=off",
            "--no-hot-first",
            "--no-follow",
            "--no-bound",
            "--background-delay=1500",
            "--poll",
            "--no-priority",
        ])
        .unwrap();
        assert_eq!(options.links, 16);
        assert_eq!(options.read_ahead, ReadAhead::Off);
        assert!(!options.hot_first && !options.follow && !options.bound && options.poll);
        assert_eq!(options.background_delay, Duration::from_millis(1500));
        assert_eq!(options.priority, Priority::OFF);
        let fixed = parse(&["--read-ahead=8"]).unwrap();
        assert_eq!(fixed.read_ahead, ReadAhead::Fixed(8));
        for bad in [
            "--links=0",
            "--links=17",
            "--read-ahead=257",
            "--read-ahead=-1",
        ] {
            assert!(parse(&[bad]).is_none(), "{bad}");
        }
    }

    #[test]
    fn what_is_gone_on_with_is_a_file_or_found() {
        let parse = |arguments: &[&str]| {
            let always = ["hikkoshi", "migrate", "unix:/s"];
            let args = Args::try_parse_from(always.iter().chain(arguments)).ok()?;
            match args.command {
                Command::Migrate(migrate) => Some((migrate.common.resume, migrate.common.qmp)),
                _ => None,
            }
        };
        assert_eq!(parse(&[]), None, "no QEMU");
        assert_eq!(parse(&["--resume"]), Some((Some(None), None)));
        let (resume, qmp) = parse(&["--resume", "--qmp", "/q"]).unwrap();
        assert_eq!((resume, qmp), (Some(None), Some("/q".into())));
        let (resume, _) = parse(&["--resume=/j.json"]).unwrap();
        assert_eq!(resume, Some(Some("/j.json".into())));
        // To give up, one must name what; to confirm it, give up.
        assert_eq!(parse(&["--qmp", "/q", "--give-up"]), None);
        assert_eq!(parse(&["--resume", "--other-side-is-lost"]), None);
        assert!(parse(&["--resume", "--give-up", "--other-side-is-lost"]).is_some());
    }
}
