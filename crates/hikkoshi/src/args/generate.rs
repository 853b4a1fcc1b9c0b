//! `hikkoshi generate`, for packages.

use std::path::PathBuf;

use clap::Args;

#[derive(Debug, Args)]
pub(crate) struct Generate {
    /// Directory for the manual pages, which must exist
    #[arg(long, value_name = "DIR")]
    pub man: PathBuf,

    /// Directory for the completions of bash, zsh and fish, which must exist
    #[arg(long, value_name = "DIR")]
    pub completions: PathBuf,
}
