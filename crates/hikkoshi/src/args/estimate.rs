//! `hikkoshi estimate`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgGroup, Args};
use hikkoshi_engine::{Compression, SourceOptions};
use hikkoshi_link::Address;

use super::allow_device::AllowSource;
use super::bandwidth::Bandwidth;
use super::convergence::ConvergenceOptions;
use super::destination_address::DestinationAddress;
use super::domain::DomainArgs;
use super::headings::{CONNECTION, MEASUREMENT, MIGRATION, OUTPUT};
use super::security::{InvitationArg, Security};
use super::{bytes, compress, dirty_rate, durations};

#[derive(Debug, Clone, Args)]
#[command(group(
    ArgGroup::new("line").args(["address", "to", "bandwidth"]).required(true).multiple(true)
))]
pub(crate) struct Estimate {
    /// Address of a waiting `hikkoshi receive`: HOST:PORT or unix:PATH
    ///
    /// The line to it is measured. It waits for a guest afterwards as before.
    #[arg(verbatim_doc_comment,
        value_name = "ADDR",
        value_parser = DestinationAddress
    )]
    pub address: Option<Address>,

    /// Invitation printed by `hikkoshi receive`, or "-" to read it from standard input
    ///
    /// The line to it is measured. The invitation stays valid.
    #[arg(verbatim_doc_comment,
        long,
        value_name = "INVITATION",
        conflicts_with_all = ["address", "plaintext", "tls_ca", "tls_cert", "tls_key"],
        help_heading = CONNECTION
    )]
    pub to: Option<InvitationArg>,

    /// QMP socket of the QEMU process
    #[arg(long, value_name = "PATH", required_unless_present = "domain", help_heading = CONNECTION)]
    pub qmp: Option<PathBuf>,

    #[command(flatten)]
    pub domain: DomainArgs,

    /// The rate of the line, or the limit for `migrate`, such as 1Gbit or 100MiB a second
    ///
    /// Without a destination it is the rate of the line. With one it is the limit for background
    /// traffic, or none.
    #[arg(verbatim_doc_comment,
        long,
        value_name = "RATE",
        allow_hyphen_values = true,
        help_heading = MIGRATION
    )]
    pub bandwidth: Option<Bandwidth>,

    /// Compression of background pages, as for `migrate`: auto, off, lz4 or zstd [default: auto]
    #[arg(
        long,
        value_name = "METHOD",
        value_parser = compress::parse,
        help_heading = MIGRATION
    )]
    pub compress: Option<Compression>,

    #[command(flatten)]
    pub convergence: ConvergenceOptions,

    /// Accept a destination whose vCPUs differ
    ///
    /// Differences are reported instead of refused. A program in the guest that uses a missing
    /// feature is killed.
    #[arg(verbatim_doc_comment, long, help_heading = MIGRATION)]
    pub allow_cpu_mismatch: bool,

    #[command(flatten)]
    pub allow: AllowSource,

    /// How long to measure the guest's writes
    #[arg(
        long,
        value_name = "N",
        default_value = "5",
        value_parser = dirty_rate::seconds,
        help_heading = MEASUREMENT
    )]
    pub seconds: Duration,

    /// How much of one vCPU's time measuring may cost, as for `dirty-rate`
    #[arg(
        long,
        value_name = "PERCENT",
        default_value = "2",
        value_parser = dirty_rate::percent,
        help_heading = MEASUREMENT
    )]
    pub max_cost: f64,

    /// Most bytes to send to the destination, or none; it takes at most a second
    #[arg(
        long,
        value_name = "BYTES",
        default_value = "512MiB",
        value_parser = parse_probe_limit,
        help_heading = MEASUREMENT
    )]
    pub probe_limit: u64,

    /// Time from a message to its answer, such as 0.2ms, if there is no destination
    #[arg(
        long,
        value_name = "TIME",
        value_parser = durations::parse_round_trip,
        conflicts_with_all = ["address", "to"],
        help_heading = MEASUREMENT
    )]
    pub round_trip: Option<Duration>,

    #[command(flatten)]
    pub security: Security,

    /// Write the result to FILE as one JSON object
    ///
    /// With "-" it is written to standard output, instead of the text.
    #[arg(verbatim_doc_comment, long, value_name = "FILE", help_heading = OUTPUT)]
    pub json: Option<PathBuf>,
}

/// Parses a number of bytes, or `none`: more than any line carries in a second.
fn parse_probe_limit(text: &str) -> Result<u64, String> {
    match text {
        "none" => Ok(u64::MAX),
        number => bytes::parse(number).map_err(|error| format!("{error}; or none, for no limit")),
    }
}

impl Estimate {
    /// The options of the migration.
    pub(crate) fn engine_options(&self) -> SourceOptions {
        SourceOptions {
            bandwidth: self.bandwidth.and_then(|given| given.limit),
            compression: self
                .compress
                .unwrap_or(SourceOptions::default().compression),
            ..self.convergence.engine_options()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Args as CommandLine, Command};
    use clap::Parser;

    fn estimate(words: &str) -> Option<Estimate> {
        let all = ["hikkoshi", "estimate"].into_iter();
        match CommandLine::try_parse_from(all.chain(words.split_whitespace()))
            .ok()?
            .command
        {
            Command::Estimate(estimate) => Some(*estimate),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn there_is_a_destination_or_a_bandwidth() {
        for good in [
            "--qmp /q h:1 --plaintext",
            "--qmp /q --to -",
            "--qmp /q --bandwidth 1Gbit",
            "--domain d --bandwidth 1Gbit --round-trip 0.5",
            "--domain d --bandwidth 1Gbit --round-trip 200us",
            "--qmp /q --to - --bandwidth 1G",
        ] {
            assert!(estimate(good).is_some(), "{good}");
        }
        for bad in [
            "--qmp /q",
            "--bandwidth 1Gbit",
            "--qmp /q h:1 --to -",
            "--qmp /q h:1 --round-trip 1",
            "--qmp /q --bandwidth 1Gbit --round-trip -1",
            "--qmp /q --bandwidth 1Gbit --round-trip NaN",
            "--qmp /q --bandwidth 1Gb",
            "--qmp /q --bandwidth 1",
            "--qmp /q --bandwidth 0",
        ] {
            assert!(estimate(bad).is_none(), "{bad}");
        }
    }

    #[test]
    fn the_probe_can_have_no_limit() {
        let limit = |value: &str| {
            let words = format!("--qmp /q --bandwidth 1Gbit --probe-limit {value}");
            estimate(&words).map(|args| args.probe_limit)
        };
        assert_eq!(limit("none"), Some(u64::MAX));
        assert_eq!(limit("1MiB"), Some(1 << 20));
        assert_eq!(limit("no"), None);
    }

    #[test]
    fn options_are_those_of_migrate() {
        let words = "--qmp /q --bandwidth 1G --max-downtime 50 --links 3 --rounds 2 --max-rounds 9 \
                     --when-stalled switch";
        let options = estimate(words).unwrap().engine_options();
        assert_eq!(options.bandwidth, Some(1_000_000_000));
        assert_eq!(options.max_downtime, Duration::from_millis(50));
        let numbers = (options.links, options.precopy_rounds, options.max_rounds);
        assert_eq!(numbers, (3, 2, 9));
        assert_eq!(options.when_stalled, hikkoshi_engine::WhenStalled::Switch);
    }
}
