//! The command line options.

use std::path::PathBuf;
use std::time::Duration;

use clap::Parser;
use serde::Serialize;

use crate::error::BenchError;

/// Compares hikkoshi with QEMU's own migration.
#[derive(Clone, Debug, Parser, Serialize)]
#[command(version, max_term_width = 100)]
pub(crate) struct Args {
    /// One round over the rate-limited networks, without the runs that do not converge: a few
    /// minutes
    #[arg(long)]
    pub quick: bool,

    /// Number of rounds, instead of the bench's own; a case that runs once still does
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub rounds: Option<u32>,

    /// Only cases LINE/WORKLOAD/SYSTEM[/VARIANT] that contain one of these words, separated by
    /// commas. If given more than once, each list must match. "--only 1gbit --only busy --only
    /// hybrid,preempt"
    #[arg(long, value_name = "WORDS")]
    pub only: Vec<String>,

    /// List the cases and exit
    #[arg(long)]
    pub list: bool,

    /// Write every run as JSON to FILE
    #[arg(long, value_name = "FILE", default_value = "bench/results/latest.json")]
    pub json: PathBuf,

    /// Continue the results in the file of --json: what it has is not measured again. Not for the
    /// benches that have a word of --only for themselves
    ///
    /// Refused if they are of another revision or another host: no table mixes these.
    #[arg(long)]
    pub resume: bool,

    /// With "--only estimate": do not measure, but make the tables and plots of the results in FILE
    #[arg(long, value_name = "FILE")]
    pub from: Option<PathBuf>,

    /// Write the plots, and the tables as Markdown, to FOLDER
    #[arg(long, value_name = "FOLDER", default_value = "bench/results/plots")]
    pub plots: PathBuf,

    /// The hikkoshi program to measure; default: the one built with this program
    #[arg(long, value_name = "PATH")]
    pub hikkoshi: Option<PathBuf>,

    /// TCP congestion control in the namespaces, for all systems; default: the host's
    #[arg(long, value_name = "NAME")]
    pub congestion: Option<String>,

    /// Downtime limit of pre-copy, ms, for all systems
    #[arg(long, value_name = "MS", default_value_t = 300)]
    pub max_downtime: u64,

    /// Cancel a pre-copy that has not converged after this time, s, for all systems
    #[arg(long, value_name = "S", default_value_t = 20)]
    pub give_up: u64,

    /// Repeat a run if other processes used more than this many processors during it
    #[arg(long, value_name = "CORES", default_value_t = 0.4)]
    pub max_load: f64,

    /// How often a run is repeated because other processes were busy, or because it failed
    #[arg(long, value_name = "N", default_value_t = 2)]
    pub retries: u32,

    /// How long to wait before a run until other processes are idle, s
    #[arg(long, value_name = "S", default_value_t = 60)]
    pub quiet_timeout: u64,
}

impl Args {
    /// The program to measure.
    ///
    /// # Errors
    /// When the file does not exist.
    pub(crate) fn program(&self) -> Result<PathBuf, BenchError> {
        let program = match &self.hikkoshi {
            Some(path) => path.clone(),
            None => std::env::current_exe()
                .unwrap_or_default()
                .with_file_name("hikkoshi"),
        };
        if program.is_file() {
            Ok(program)
        } else {
            Err(BenchError::NoProgram(program))
        }
    }

    /// The value of `--quiet-timeout`.
    pub(crate) fn idle_limit(&self) -> Duration {
        Duration::from_secs(self.quiet_timeout)
    }

    /// The value of `--give-up`.
    pub(crate) fn give_up(&self) -> Duration {
        Duration::from_secs(self.give_up)
    }
}
