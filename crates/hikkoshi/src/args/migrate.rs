//! `hikkoshi migrate`.

use std::num::NonZeroU64;
use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgGroup, Args};
use hikkoshi_engine::{Compression, Mode, ReadAhead, SourceOptions};
use hikkoshi_link::Address;

use super::allow_device::AllowSource;
use super::bandwidth::Bandwidth;
use super::bench_options::BenchOptions;
use super::convergence::ConvergenceOptions;
use super::destination_address::DestinationAddress;
use super::disks::DiskArgs;
use super::domain::{DomainArgs, DomainOptions};
use super::headings::{CONNECTION, MIGRATION, TUNING};
use super::latency_options::LatencyOptions;
use super::links::LinkArgs;
use super::mode::RequestedMode;
use super::output_options::OutputOptions;
use super::recovery::{GiveUpOptions, RecoveryOptions};
use super::resolved::MigrateOptions;
use super::security::{InvitationArg, Security};
use super::ssh::SshArgs;
use super::{compress, mode, read_ahead};

#[derive(Debug, Clone, Args)]
#[command(group(
    ArgGroup::new("source").args(["qmp", "domain", "resume"]).required(true).multiple(true)
))]
#[command(group(
    ArgGroup::new("disks").args(["copy_disks", "shared_disks"]).multiple(true).conflicts_with("resume")
))]
pub(crate) struct Migrate {
    /// Address of `hikkoshi receive`: HOST:PORT or unix:PATH
    ///
    /// With --resume, the default is the address in the journal.
    #[arg(verbatim_doc_comment,
        value_name = "ADDR",
        value_parser = DestinationAddress,
        required_unless_present_any = ["to", "resume", "ssh"]
    )]
    pub address: Option<Address>,

    /// Invitation printed by `hikkoshi receive`, or "-" to read it from standard input
    ///
    /// An invitation is a secret, and other users of this host can see the command line: prefer
    /// "-".
    #[arg(verbatim_doc_comment,
        long,
        value_name = "INVITATION",
        conflicts_with_all = ["address", "plaintext", "tls_ca", "tls_cert", "tls_key", "resume"],
        help_heading = CONNECTION
    )]
    pub to: Option<InvitationArg>,

    /// Name of the guest for the `hikkoshi daemon` at ADDR, which admits this side's certificate
    ///
    /// The daemon decides by the certificate and this name what receives the guest
    /// (`hikkoshi daemon --admit`).
    #[arg(verbatim_doc_comment,
        long,
        value_name = "NAME",
        value_parser = super::guest_name::parse,
        requires_all = ["address", "tls_ca"],
        conflicts_with_all = ["resume", "to", "ssh"],
        help_heading = CONNECTION
    )]
    pub name: Option<String>,

    /// QMP socket of the QEMU process
    #[arg(
        long,
        value_name = "PATH",
        display_order = 0,
        help_heading = CONNECTION
    )]
    pub qmp: Option<PathBuf>,

    #[command(flatten)]
    pub domain: DomainArgs,

    #[command(flatten)]
    pub ssh: SshArgs,

    /// Migration mode: precopy, postcopy, hybrid or auto [default: hybrid]
    ///
    /// precopy copies memory while the guest runs at the source. The switchover follows when the
    /// rest fits into --max-downtime. postcopy begins with the switchover; pages follow while the
    /// guest runs at the destination. hybrid copies memory once (--rounds), and sends the pages
    /// that were written since after the switchover. auto measures the guest and the line for about
    /// 3 s, and chooses one of the three, as `hikkoshi estimate` recommends.
    #[arg(verbatim_doc_comment, long, value_name = "MODE", value_parser = mode::parse_requested, help_heading = MIGRATION)]
    pub mode: Option<RequestedMode>,

    #[command(flatten)]
    pub convergence: ConvergenceOptions,

    /// Limit for background traffic, such as 50MB, 50MiB or 400Mbit a second [default: none]
    ///
    /// Pages that the guest waits for are not limited. Units: K, M, G, T or KB, MB, ... (powers of
    /// 1000), Ki or KiB, ... (powers of 1024), Kbit, ... (bits). B is a byte. "50" is refused
    /// because other tools count it in different units, and "50Mb" because it is ambiguous.
    #[arg(verbatim_doc_comment,
        long,
        value_name = "RATE",
        allow_hyphen_values = true,
        help_heading = MIGRATION
    )]
    pub bandwidth: Option<Bandwidth>,

    /// Compress background pages: auto, off, lz4 or zstd [default: auto]
    ///
    /// auto compresses while the line is what limits, by the method with which the guest arrives
    /// soonest, and only content that becomes smaller. lz4 and zstd compress always. Pages that the
    /// guest waits for are never compressed.
    #[arg(verbatim_doc_comment,
        long,
        value_name = "METHOD",
        value_parser = compress::parse,
        help_heading = MIGRATION
    )]
    pub compress: Option<Compression>,

    /// Move the guest although the destination's vCPUs differ
    ///
    /// Differences are reported instead of refused. A program in the guest that uses a missing
    /// feature is killed. Another accelerator (KVM, TCG), number of vCPUs or APIC ID is still
    /// refused.
    #[arg(verbatim_doc_comment, long, help_heading = MIGRATION)]
    pub allow_cpu_mismatch: bool,

    /// Do not keep network frames that arrive for the guest while it is paused
    ///
    /// By default frames that arrive at the guest's tap devices during the switchover are sent to
    /// the destination and delivered there.
    #[arg(verbatim_doc_comment, long, help_heading = MIGRATION)]
    pub no_keep_frames: bool,

    #[command(flatten)]
    pub disks: DiskArgs,

    /// End the source's QEMU after the migration has completed
    ///
    /// Then the old guest cannot be continued by mistake. QEMU is ended only if the exit status is
    /// 0. A domain (--domain) is always destroyed then.
    #[arg(verbatim_doc_comment, long, help_heading = MIGRATION)]
    pub quit_source: bool,

    #[command(flatten)]
    pub moved_domain: DomainOptions,

    #[command(flatten)]
    pub allow: AllowSource,

    #[command(flatten)]
    pub link: LinkArgs,

    /// Pages to send around a requested page: adaptive, off or a number [default: adaptive]
    ///
    /// In post-copy. A number (at most 256) is the count on either side. adaptive starts with 8 on
    /// either side; sequential access raises it and random access lowers it.
    #[arg(verbatim_doc_comment, long, value_name = "N", value_parser = read_ahead::parse, help_heading = TUNING)]
    pub read_ahead: Option<ReadAhead>,

    #[command(flatten)]
    pub bench: BenchOptions,

    #[command(flatten)]
    pub latency: LatencyOptions,

    #[command(flatten)]
    pub security: Security,

    #[command(flatten)]
    pub recovery: RecoveryOptions,

    #[command(flatten)]
    pub give_up: GiveUpOptions,

    #[command(flatten)]
    pub output: OutputOptions,
}

impl Migrate {
    /// The options of a migration that begins now.
    pub(crate) fn options(&self) -> MigrateOptions {
        self.options_over(&MigrateOptions::default())
    }

    /// These options, and where one was not given, that of `earlier`.
    pub(crate) fn options_over(&self, earlier: &MigrateOptions) -> MigrateOptions {
        let convergence = &self.convergence;
        MigrateOptions {
            link: self.link.over(&earlier.link),
            links: convergence.links.unwrap_or(earlier.links),
            bandwidth_bytes_per_s: self
                .bandwidth
                .map_or(earlier.bandwidth_bytes_per_s, |given| {
                    given.limit.and_then(NonZeroU64::new)
                }),
            compression: self.compress.unwrap_or(earlier.compression),
            when_stalled: convergence.when_stalled.unwrap_or(earlier.when_stalled),
            read_ahead: self.read_ahead.unwrap_or(earlier.read_ahead),
            quit_source: self.quit_source || earlier.quit_source,
            domain: self.moved_domain.over(&earlier.domain),
        }
    }

    /// How the guest is moved. `auto` is replaced before it is.
    fn mode(&self) -> Mode {
        let requested = self.mode.and_then(RequestedMode::fixed);
        requested.unwrap_or(SourceOptions::default().mode)
    }

    /// The engine's options: `resolved`, and those that are for this run only.
    pub(crate) fn engine_options(&self, resolved: &MigrateOptions) -> SourceOptions {
        let bench = &self.bench;
        let precopy = self.convergence.engine_options();
        SourceOptions {
            mode: self.mode(),
            max_downtime: precopy.max_downtime,
            precopy_rounds: precopy.precopy_rounds,
            max_rounds: precopy.max_rounds,
            allow_cpu_mismatch: self.allow_cpu_mismatch,
            drain: !bench.no_drain,
            keep_frames: !self.no_keep_frames,
            background_delay: Duration::from_millis(bench.background_delay.unwrap_or(0)),
            hot_first: !bench.no_hot_first,
            limit_in_flight: !bench.no_in_flight_limit,
            poll: self.latency.poll,
            priority: self.latency.priority(),
            ..resolved.engine_options()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Args as CommandLine, Command};
    use clap::Parser;
    use hikkoshi_engine::{Priority, RetryFor};

    fn try_migrate(words: &str) -> Result<Migrate, clap::Error> {
        let all = ["hikkoshi", "migrate"].into_iter();
        match CommandLine::try_parse_from(all.chain(words.split_whitespace()))?.command {
            Command::Migrate(migrate) => Ok(*migrate),
            other => panic!("{other:?}"),
        }
    }

    fn migrate(words: &str) -> Migrate {
        try_migrate(words).unwrap()
    }

    #[test]
    fn the_destination_is_given_in_one_way() {
        let parses = |words: &str| try_migrate(&format!("--qmp /q {words}")).is_ok();
        let certificates = "--tls-ca ca --tls-cert crt --tls-key key";
        for good in ["--to -", "--to hikkoshi1:a.b@c:1", "h:1", "h:1 --plaintext"] {
            assert!(parses(good), "{good}");
        }
        assert!(parses(&format!("h:1 {certificates}")));
        for bad in [
            "",
            "hikkoshi1:a.b@c:1",
            "h:1 --to -",
            "--to - --plaintext",
            "h:1 --tls-ca ca",
            "h:1 --tls-key k",
        ] {
            assert!(!parses(bad), "{bad}");
        }
        assert!(parses(&format!("h:1 --name web {certificates}")));
        for bad in [
            "h:1 --name web",
            "--to - --name web",
            "--name web",
            "--ssh h --name web",
        ] {
            assert!(!parses(bad), "{bad}");
        }
        assert!(!parses(&format!("--resume --name web {certificates}")));
        assert!(!parses(&format!("h:1 --name ../web {certificates}")));
        assert!(!parses(&format!("h:1 --plaintext {certificates}")));
        for bad in ["h:1 --plaintext --tls-key k", "--to - --tls-cert c"] {
            assert!(!parses(bad), "{bad}");
        }
        assert!(!parses(&format!("--to - {certificates}")));
    }

    /// An option that needs another one is refused with what excludes that.
    #[test]
    fn options_of_domains_are_refused_without_one() {
        for option in [
            "--persistent",
            "--persistent --autostart",
            "--undefine-source",
            "--connect qemu:///system",
            "--ssh h --remote-connect u --remote-qmp /r",
            "--ssh h --remote-name n --remote-qmp /r",
        ] {
            let address = if option.starts_with("--ssh") {
                ""
            } else {
                "h:1"
            };
            let refused = try_migrate(&format!("--qmp /q {address} {option}"));
            assert!(refused.is_err(), "{option}");
        }
        assert!(try_migrate("--domain d h:1 --persistent --autostart --connect u").is_ok());
    }

    #[test]
    fn disks_are_copied_or_shared_on_request() {
        let of = |words: &str| {
            let disks = migrate(&format!("--qmp /q h:1 {words}")).disks;
            let selection = disks.selection();
            assert_eq!(selection.drop_snapshots, words.contains("snapshots"));
            assert_eq!(selection.drop_bitmaps, words.contains("bitmaps"));
            (selection.copied, selection.shared)
        };
        let names = || Some(vec!["vda".to_owned(), "vdb".to_owned()]);
        let all = || Some(Vec::new());
        for (words, expected) in [
            ("", (None, None)),
            ("--copy-disks", (all(), None)),
            ("--copy-disks=vda,vdb", (names(), None)),
            ("--shared-disks=vda,vdb", (None, names())),
            ("--shared-disks", (None, all())),
            ("--copy-disks --shared-disks=vda,vdb", (all(), names())),
            ("--copy-disks --drop-snapshots", (all(), None)),
            ("--copy-disks --drop-bitmaps", (all(), None)),
        ] {
            assert_eq!(of(words), expected, "{words}");
        }
        // What follows is the address.
        for option in ["--copy-disks", "--shared-disks"] {
            let address = migrate(&format!("--qmp /q {option} h:1")).address.unwrap();
            assert_eq!(address.to_string(), "h:1");
            assert!(try_migrate(&format!("--qmp /q --resume {option}")).is_err());
        }
        for option in ["--drop-snapshots", "--drop-bitmaps"] {
            assert!(
                try_migrate(&format!("--qmp /q h:1 {option}")).is_err(),
                "{option}"
            );
        }
    }

    #[test]
    fn an_invitation_in_the_wrong_place_is_not_repeated() {
        for word in ["hikkoshi1:a.secret@c:1", "hikkoshi1:a.secret", "hikkoshi1:"] {
            let error = try_migrate(&format!("--qmp /q {word}")).unwrap_err();
            let error = error.to_string();
            assert!(
                error.contains("--to") && !error.contains("secret"),
                "{error}"
            );
        }
    }

    #[test]
    fn options_reach_the_engine() {
        let migrate = migrate(
            "--qmp /q 10.0.0.2:7000 --mode postcopy --max-downtime 50 --bandwidth 1G --json out \
             --plaintext",
        );
        assert_eq!(migrate.mode(), Mode::Postcopy);
        let options = migrate.engine_options(&migrate.options());
        assert_eq!(options.max_downtime, Duration::from_millis(50));
        assert_eq!(options.bandwidth, Some(1_000_000_000));
        assert_eq!(options.links, hikkoshi_engine::default_links());
        assert_eq!(options.read_ahead, ReadAhead::Adaptive);
        assert!(options.hot_first && options.limit_in_flight && !options.poll);
        assert!(options.drain && options.keep_frames && !options.allow_cpu_mismatch);
        assert_eq!(options.priority, Priority::ON);
        assert_eq!(options.retry_for, RetryFor::BY_MODE);
        assert!(migrate.security.plaintext);
    }

    /// The help names the defaults, and the engine has them.
    #[test]
    fn defaults_are_as_the_help_says() {
        let migrate = migrate("--qmp /q h:1");
        let options = migrate.engine_options(&migrate.options());
        assert_eq!(options.mode, Mode::Hybrid);
        assert_eq!(options.max_downtime, Duration::from_millis(300));
        assert_eq!(options.precopy_rounds, 1);
        assert_eq!(options.max_rounds, 30);
        assert_eq!(options.when_stalled, hikkoshi_engine::WhenStalled::Continue);
        assert_eq!(options.read_ahead, ReadAhead::Adaptive);
        assert_eq!(options.stall_timeout, Duration::from_secs(20));
        assert_eq!(options.background_delay, Duration::ZERO);
        assert_eq!(
            options.stall_timeout,
            SourceOptions::default().stall_timeout
        );
    }

    #[test]
    fn each_policy_can_be_switched_off() {
        let parse = |more: &str| {
            let migrate = try_migrate(&format!("--qmp /q h:1 {more}")).ok()?;
            Some(migrate.engine_options(&migrate.options()))
        };
        let options = parse(
            "--links=16 --read-ahead=off --no-hot-first --no-in-flight-limit \
             --background-delay=1500 --poll --no-priority --no-drain",
        )
        .unwrap();
        assert_eq!(options.links, 16);
        assert_eq!(options.read_ahead, ReadAhead::Off);
        assert!(!options.hot_first && !options.limit_in_flight && options.poll);
        assert!(!options.drain);
        assert_eq!(options.background_delay, Duration::from_millis(1500));
        assert_eq!(options.priority, Priority::OFF);
        assert_eq!(parse("--max-rounds=none").unwrap().max_rounds, u32::MAX);
        let fixed = parse("--read-ahead=8").unwrap();
        assert_eq!(fixed.read_ahead, ReadAhead::Fixed(8));
        for bad in [
            "--links=0",
            "--links=17",
            "--read-ahead=257",
            "--read-ahead=-1",
            "--max-rounds=0",
            "--max-downtime=0",
            "--max-downtime=600001",
        ] {
            assert!(parse(bad).is_none(), "{bad}");
        }
    }

    #[test]
    fn earlier_options_hold_after_resume() {
        let first = migrate(
            "h:1 --domain d --bandwidth 50M --retry-for 90s --links=3 --no-hot-first --read-ahead 5 \
             --quit-source --persistent",
        );
        let first = first.options();
        let resumed = migrate("--resume=/j/s.json --retry-for 5m");
        let second = resumed.options_over(&first);
        let options = resumed.engine_options(&second);
        assert_eq!(options.bandwidth, Some(50_000_000));
        assert_eq!(
            (options.links, options.read_ahead),
            (3, ReadAhead::Fixed(5))
        );
        assert!(second.quit_source && second.domain.persistent && !second.domain.autostart);
        assert!(options.hot_first, "only for a measurement");
        assert_eq!(
            options.retry_for,
            RetryFor::always(Duration::from_secs(300))
        );
        let unlimited = migrate("--resume --bandwidth none").options_over(&second);
        assert_eq!(unlimited.bandwidth_bytes_per_s, None);
        assert_eq!(migrate("--resume").options_over(&second), second);
    }

    #[test]
    fn resume_takes_a_file_or_searches() {
        let parse = |words: &str| {
            let migrate = try_migrate(&format!("unix:/s {words}")).ok()?;
            Some((migrate.recovery.resume, migrate.qmp))
        };
        assert_eq!(parse(""), None, "no QEMU");
        assert_eq!(parse("--resume"), Some((Some(None), None)));
        let (resume, qmp) = parse("--resume --qmp /q").unwrap();
        assert_eq!((resume, qmp), (Some(None), Some("/q".into())));
        let (resume, _) = parse("--resume=/j.json").unwrap();
        assert_eq!(resume, Some(Some("/j.json".into())));
        // Each of the three needs the one before.
        assert_eq!(parse("--qmp /q --give-up"), None);
        assert_eq!(parse("--resume --other-side-is-lost"), None);
        assert!(parse("--resume --give-up --other-side-is-lost").is_some());
    }
}
