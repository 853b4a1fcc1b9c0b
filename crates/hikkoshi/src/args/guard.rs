//! `hikkoshi guard`, which `migrate` starts.

use std::path::PathBuf;

use clap::Args;

#[derive(Debug, Args)]
pub(crate) struct Guard {
    /// The journal of the migration
    #[arg(long, value_name = "FILE")]
    pub journal: PathBuf,

    /// Write JSON to standard error
    #[arg(long)]
    pub json: bool,
}
