//! `validate-all`: whether the parameters can be used on this node.

use std::path::Path;

use super::answer::Answer;
use super::guest::domain_uuid;
use super::parameters::{Invalid, Machine, Parameters};
use crate::args::Words;
use crate::commands::operator_file;
use crate::machines;

/// Checks files and programs.
pub(super) fn check(parameters: &Parameters) -> Result<(), Invalid> {
    let missing = |why: String| Invalid::new(Answer::NotInstalled, why);
    match &parameters.machine {
        Machine::Template(file) => {
            let unusable = |why| {
                let why = format!("the template {}: {why}", file.display());
                Invalid::new(Answer::NotInstalled, why)
            };
            let text = operator_file::read(file).map_err(unusable)?;
            let program = machines::program_of(&text).map_err(unusable)?;
            require_program(&program)?;
        }
        Machine::Domain { file, .. } => {
            domain_uuid(file).map_err(missing)?;
            require_program("virsh")?;
        }
    }
    for file in [
        &parameters.tls_ca,
        &parameters.tls_cert,
        &parameters.tls_key,
    ] {
        if !Path::new(file).is_file() {
            return Err(missing(format!("the file {file} is missing")));
        }
    }
    if !parameters.options.trim().is_empty() {
        let words: Result<Words, String> = parameters.options.parse();
        words.map_err(|why| Invalid::new(Answer::NotConfigured, format!("options: {why}")))?;
    }
    Ok(())
}

/// Whether a program is on this node.
fn require_program(program: &str) -> Result<(), Invalid> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = match program.contains('/') {
        true => Path::new(program).is_file(),
        false => std::env::split_paths(&path).any(|folder| folder.join(program).is_file()),
    };
    match found {
        true => Ok(()),
        false => Err(Invalid::new(
            Answer::NotInstalled,
            format!("the program {program} is not on this node"),
        )),
    }
}
