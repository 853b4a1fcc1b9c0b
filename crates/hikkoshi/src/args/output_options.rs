//! What a side of a migration writes: options of one run, which are not kept in the journal.

use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};

use super::headings::OUTPUT;

/// What `migrate` and `receive` write.
#[derive(Debug, Clone, Args)]
pub(crate) struct OutputOptions {
    /// Progress output format
    #[arg(
        long,
        value_name = "FORMAT",
        value_enum,
        default_value_t = ProgressFormat::Auto,
        help_heading = OUTPUT
    )]
    pub progress: ProgressFormat,

    /// Write the result to FILE as one JSON object
    ///
    /// On success it is the statistics of the migration, otherwise {"error": ...} with the
    /// reason. With "-" it is written to standard output, and an invitation to standard error.
    #[arg(verbatim_doc_comment, long, value_name = "FILE", help_heading = OUTPUT)]
    pub json: Option<PathBuf>,

    #[command(flatten)]
    pub result: ResultOptions,
}

/// What is written at the end, for people.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct ResultOptions {
    /// Write a report of the migration to FILE: a web page
    ///
    /// It has what happened and when, how long the guest was paused and why, the latency of page
    /// requests, and a map of the guest's memory. It needs no other files, and can be shown without
    /// a network. Also written after a failure.
    #[arg(verbatim_doc_comment, long, value_name = "FILE.html", help_heading = OUTPUT)]
    pub report: Option<PathBuf>,

    /// Print all of the result at the end: pages, bytes, and the latency of page requests
    #[arg(short, long, help_heading = OUTPUT)]
    pub verbose: bool,
}

impl OutputOptions {
    /// Whether standard output is for the JSON object only.
    pub(crate) fn has_json_on_stdout(&self) -> bool {
        self.json.as_deref() == Some(Path::new("-"))
    }
}

/// What is written to standard error during a migration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ProgressFormat {
    /// A progress bar on a terminal, otherwise a line every two seconds
    Auto,
    /// One JSON object a line; the last one is the result
    Json,
    /// No progress
    None,
}
