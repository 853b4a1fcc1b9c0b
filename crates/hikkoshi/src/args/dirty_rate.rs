//! `hikkoshi dirty-rate`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::domain::DomainArgs;
use super::durations;
use super::headings::{CONNECTION, MEASUREMENT, OUTPUT};

#[derive(Debug, Clone, Args)]
pub(crate) struct DirtyRate {
    /// QMP socket of the QEMU process
    #[arg(long, value_name = "PATH", required_unless_present = "domain", help_heading = CONNECTION)]
    pub qmp: Option<PathBuf>,

    #[command(flatten)]
    pub domain: DomainArgs,

    /// How long to measure; Ctrl-C ends it earlier
    #[arg(long, value_name = "N", default_value = "10", value_parser = seconds, help_heading = MEASUREMENT)]
    pub seconds: Duration,

    /// Time between two reads of the dirty log
    ///
    /// It is the shortest window of the working sets. A page that is written several times in it
    /// counts once.
    #[arg(verbatim_doc_comment,
        long,
        value_name = "TIME",
        default_value = "100ms",
        value_parser = durations::parse_interval,
        help_heading = MEASUREMENT
    )]
    pub interval: u32,

    /// Measure only this RAM block, such as vga.vram
    ///
    /// Other memory is not protected, so that its writes cost nothing. Can be given several times.
    #[arg(verbatim_doc_comment, long, value_name = "NAME", help_heading = MEASUREMENT)]
    pub block: Vec<String>,

    /// How much of one vCPU's time measuring may cost
    ///
    /// If all memory would cost more, a random sample of it is measured. With 100, all memory is
    /// measured, whatever it costs.
    #[arg(verbatim_doc_comment,
        long,
        value_name = "PERCENT",
        default_value = "2",
        value_parser = percent,
        help_heading = MEASUREMENT
    )]
    pub max_cost: f64,

    /// Also print the rate of each range of memory
    #[arg(long, help_heading = OUTPUT)]
    pub map: bool,

    /// Write the result to FILE as one JSON object
    ///
    /// With "-" it is written to standard output, instead of the text.
    #[arg(verbatim_doc_comment, long, value_name = "FILE", help_heading = OUTPUT)]
    pub json: Option<PathBuf>,
}

/// Parses a number of seconds, which may have a fraction.
pub(super) fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().filter(|seconds| *seconds > 0.0);
    seconds
        .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
        .ok_or_else(|| format!("'{text}' is not a number of seconds above 0"))
}

/// Parses a percentage. The result is a part of 1.
pub(super) fn percent(text: &str) -> Result<f64, String> {
    let percent: Option<f64> = text.parse().ok();
    percent
        .filter(|percent| *percent > 0.0 && *percent <= 100.0)
        .map(|percent| percent / 100.0)
        .ok_or_else(|| format!("'{text}' is not a percentage above 0 and up to 100"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_and_percentages_have_fractions() {
        assert_eq!(seconds("0.5"), Ok(Duration::from_millis(500)));
        assert_eq!(percent("50"), Ok(0.5));
        for bad in ["0", "-1", "x", "", "NaN", "inf", "1e30"] {
            assert!(seconds(bad).is_err(), "{bad}");
            assert!(percent(bad).is_err(), "{bad}");
        }
        assert!(percent("101").is_err());
    }
}
