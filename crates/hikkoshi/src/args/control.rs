//! `hikkoshi set`, `switch` and `cancel`: a migration that runs is changed.

use clap::{ArgGroup, Args};

use super::bandwidth::Bandwidth;
use super::durations;
use super::headings::MIGRATION;
use super::running::RunningMigration;

/// `hikkoshi set`.
#[derive(Debug, Clone, Args)]
#[command(group(
    ArgGroup::new("limit").args(["bandwidth", "max_downtime"]).required(true).multiple(true)
))]
pub(crate) struct SetLimits {
    #[command(flatten)]
    pub migration: RunningMigration,

    /// Limit for background traffic, such as 50MB, 50MiB or 400Mbit a second; or none
    ///
    /// Used at once. Pages that the guest waits for are not limited. Units as for `hikkoshi
    /// migrate`.
    #[arg(verbatim_doc_comment,
        long,
        value_name = "RATE",
        allow_hyphen_values = true,
        help_heading = MIGRATION
    )]
    pub bandwidth: Option<Bandwidth>,

    /// Longest pause of the guest in pre-copy, such as 300ms or 1.5s
    ///
    /// Used at the end of the present round. Only in the mode precopy, before the guest is paused.
    /// Values as for `hikkoshi migrate`.
    #[arg(verbatim_doc_comment,
        long,
        value_name = "TIME",
        value_parser = durations::parse_max_downtime,
        allow_hyphen_values = true,
        help_heading = MIGRATION
    )]
    pub max_downtime: Option<u64>,
}

/// `hikkoshi switch`.
#[derive(Debug, Clone, Args)]
pub(crate) struct Switch {
    #[command(flatten)]
    pub migration: RunningMigration,
}

/// `hikkoshi cancel`.
#[derive(Debug, Clone, Args)]
pub(crate) struct Cancel {
    #[command(flatten)]
    pub migration: RunningMigration,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Args as CommandLine, Command};
    use clap::Parser;

    fn set(words: &str) -> Result<SetLimits, clap::Error> {
        let all = ["hikkoshi", "set"].into_iter();
        match CommandLine::try_parse_from(all.chain(words.split_whitespace()))?.command {
            Command::Set(set) => Ok(set),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn limits_are_those_of_migrate_and_none() {
        for (words, bandwidth, max_downtime) in [
            ("web --bandwidth 50M", Some(Some(50_000_000)), None),
            ("--bandwidth 400Mbit", Some(Some(50_000_000)), None),
            ("--bandwidth none", Some(None), None),
            ("--max-downtime 20", None, Some(20)),
            ("--max-downtime 1.5s", None, Some(1500)),
            ("--max-downtime none", None, Some(600_000)),
            (
                "--max-downtime 20ms --bandwidth 1B web",
                Some(Some(1)),
                Some(20),
            ),
        ] {
            let set = set(words).unwrap();
            let given = set.bandwidth.map(|limit| limit.limit);
            assert_eq!(
                (given, set.max_downtime),
                (bandwidth, max_downtime),
                "{words}"
            );
        }
        for bad in [
            "",
            "web",
            "--bandwidth 0",
            "--bandwidth 50Mb",
            "--bandwidth -1",
            "--max-downtime 0",
            "--max-downtime 600001",
            "--bandwidth 50",
            "web db --bandwidth 1M",
        ] {
            assert!(set(bad).is_err(), "{bad}");
        }
    }
}
