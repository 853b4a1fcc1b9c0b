//! `hikkoshi guard`, which `migrate` starts.

use std::path::PathBuf;

use clap::Args;

#[derive(Debug, Args)]
pub(crate) struct Guard {
    /// The journal of the migration
    #[arg(long, value_name = "FILE")]
    pub journal: PathBuf,

    /// A file to hold open until there is no journal any more
    #[arg(long, value_name = "FILE")]
    pub hold: Vec<PathBuf>,

    /// Write JSON to standard error
    #[arg(long)]
    pub json: bool,
}
