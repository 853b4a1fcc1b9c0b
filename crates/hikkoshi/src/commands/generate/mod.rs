//! `hikkoshi generate`: manual pages and completions, from the definitions of the command line.

mod manual;
#[cfg(test)]
mod tests;
mod visible;

use std::io;
use std::path::Path;

use clap_complete::aot::{Shell, generate_to};

use crate::args::Generate;
use crate::output::exit::{Exit, ExitStatus};
use crate::output::reason::Reason;

/// Writes a page for each visible command, and a file for each shell.
pub(crate) fn run(args: &Generate) -> Result<ExitStatus, Exit> {
    manual::write(&args.man).map_err(|error| failed("manual pages", &args.man, &error))?;
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        generate_to(
            shell,
            &mut visible::command(),
            "hikkoshi",
            &args.completions,
        )
        .map_err(|error| failed("completions", &args.completions, &error))?;
    }
    Ok(ExitStatus::Done)
}

fn failed(what: &str, folder: &Path, error: &io::Error) -> Exit {
    let why = format!(
        "writing the {what} to {} (it must exist): {error}",
        folder.display()
    );
    Exit::new(ExitStatus::Usage, Reason::Usage, why)
}
