//! The command line.

use std::num::{NonZeroU16, NonZeroU64};
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args as ClapArgs, Parser, Subcommand, ValueEnum};
use hikkoshi_engine::destination::MAX_FAULT_THREADS;
use hikkoshi_engine::link::Address;
use hikkoshi_engine::{
    DestinationOptions, MAX_LINKS, Mode, Priority, ReadAhead, SourceOptions, WhenStalled,
};

/// Moves a running virtual machine to another host.
///
/// Exit status: 0 the guest runs at the destination and every page is there;
/// 1 it still runs at the source; 2 bad usage; 3 it stands still and nothing of
/// it is lost. HIKKOSHI_LOG=debug tells more.
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

/// What both sides have.
#[derive(Debug, ClapArgs)]
pub struct Common {
    /// QMP socket of the QEMU process
    #[arg(long, value_name = "PATH")]
    pub qmp: PathBuf,

    /// Write the account as JSON to FILE ("-": standard output)
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,

    /// Allow TCP beyond this machine without encryption: guest memory can be
    /// read and changed by anybody on the way
    #[arg(long)]
    pub plaintext: bool,

    /// How to tell how it goes
    #[arg(long, value_enum, default_value_t = ProgressKind::Auto)]
    pub progress: ProgressKind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ProgressKind {
    /// A bar on a terminal, otherwise a line every few seconds
    Auto,
    /// One JSON object a line on standard error
    Json,
    /// Nothing
    None,
}

#[derive(Debug, ClapArgs)]
pub struct Receive {
    /// Where to listen: HOST:PORT or unix:PATH
    #[arg(long, value_name = "ADDR")]
    pub listen: Address,

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
    /// second (suffixes K, M, G; 1G if left out)
    #[arg(
        long,
        value_name = "BYTES_PER_S",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "1G",
        value_parser = parse_bytes
    )]
    pub collapse: Option<u64>,
}

impl Receive {
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
        }
    }
}

#[derive(Debug, ClapArgs)]
pub struct Migrate {
    /// Where `hikkoshi receive` listens: HOST:PORT or unix:PATH
    #[arg(value_name = "ADDR")]
    pub address: Address,

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

    /// Ceiling on background traffic in bytes a second (suffixes K, M, G);
    /// pages that the guest waits for are never held back
    #[arg(long, value_name = "BYTES_PER_S", value_parser = parse_bytes)]
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

    /// Post-copy: spin instead of sleeping while waiting for page requests;
    /// costs a processor
    #[arg(long)]
    pub poll: bool,

    /// Leave all threads at the same priority
    #[arg(long)]
    pub no_priority: bool,
}

impl Migrate {
    /// The engine's options.
    pub fn options(&self) -> SourceOptions {
        SourceOptions {
            mode: self.mode,
            max_downtime: Duration::from_millis(self.max_downtime),
            bandwidth: self.bandwidth,
            precopy_rounds: self.rounds,
            max_rounds: self.max_rounds,
            when_stalled: self.when_stalled.into(),
            links: self.links.unwrap_or_else(SourceOptions::default_links),
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
    /// QMP socket of the QEMU process
    #[arg(long, value_name = "PATH")]
    pub qmp: PathBuf,
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

/// A number of bytes, with a decimal suffix if one likes.
fn parse_bytes(text: &str) -> Result<u64, String> {
    let (digits, factor) = match text.char_indices().last() {
        Some((at, 'k' | 'K')) => (&text[..at], 1_000),
        Some((at, 'm' | 'M')) => (&text[..at], 1_000_000),
        Some((at, 'g' | 'G')) => (&text[..at], 1_000_000_000),
        _ => (text, 1),
    };
    let number = digits.parse::<u64>().ok().filter(|&n| n > 0);
    number.and_then(|n| n.checked_mul(factor)).ok_or_else(|| {
        format!("'{text}' is no rate; write bytes a second, such as 50000000 or 50M")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_well_formed() {
        Args::command().debug_assert();
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
        assert!(migrate.common.plaintext);
        let receive = |more: &[&str]| {
            let fixed = ["hikkoshi", "receive", "--listen", "unix:/s", "--qmp", "/q"];
            match Args::parse_from(fixed.iter().chain(more)).command {
                Command::Receive(receive) => receive.options(),
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(receive(&[]), DestinationOptions::default());
        let rate = |more| receive(&[more]).collapse.map(NonZeroU64::get);
        assert_eq!(rate("--collapse"), Some(1_000_000_000));
        assert_eq!(rate("--collapse=5M"), Some(5_000_000));
        let all = receive(&["--fault-threads", "3", "--poll", "--no-priority"]);
        assert_eq!(all.fault_threads, NonZeroU16::new(3));
        assert!(all.poll && all.priority == Priority::OFF && all.collapse.is_none());
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
    fn rates_have_suffixes() {
        assert_eq!(parse_bytes("20"), Ok(20));
        assert_eq!(parse_bytes("3k"), Ok(3000));
        for bad in ["", "k", "0", "1T", "-1", "99999999999999999999G"] {
            assert!(parse_bytes(bad).is_err(), "{bad}");
        }
    }
}
