//! The crates of this workspace, and those that `hikkoshi` is linked with; for packages.
//!
//! | command | |
//! |---|---|
//! | `licences` | prints the licence texts that packages have to pass on, each with its crates |
//! | `names` | prints `NAME VERSION` of each linked crate |
//! | `check-sbom FILE` | checks that a bill of materials names each of them |
//! | `published` | prints the crates of this workspace that can be published |
//! | `check-manifests` | checks that these have what crates.io and their readers want |
//!
//! Linked are the normal dependencies of the program with all features, on x86-64 Linux. Crates
//! that only build others (procedural macros and build scripts) are not part of the program.

mod graph;
mod licences;
mod manifests;
mod sbom;

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use error_reporter::Report;
use serde_json::Value;
use thiserror::Error;

/// Why the crates cannot be listed.
#[derive(Debug, Error)]
enum ListError {
    #[error("running cargo metadata")]
    Start(#[source] io::Error),
    #[error("cargo metadata failed; it has said why")]
    Cargo,
    #[error("reading the output of cargo metadata")]
    Json(#[from] serde_json::Error),
    #[error(transparent)]
    Graph(#[from] graph::GraphError),
    #[error(transparent)]
    Licence(#[from] licences::LicenceError),
    #[error(transparent)]
    Manifest(#[from] manifests::ManifestError),
    #[error("reading {file}")]
    Read { file: PathBuf, source: io::Error },
    #[error("{file}")]
    Sbom {
        file: PathBuf,
        source: sbom::SbomError,
    },
    #[error("writing to standard output")]
    Write(#[source] io::Error),
}

fn main() -> ExitCode {
    let words: Vec<_> = std::env::args().skip(1).collect();
    let words: Vec<_> = words.iter().map(String::as_str).collect();
    let output = match words.as_slice() {
        ["licences"] => licence_texts(),
        ["names"] => names(),
        ["check-sbom", file] => check_sbom(Path::new(file)),
        ["published"] => published(),
        ["check-manifests"] => check_manifests(),
        _ => {
            let usage = "usage: hikkoshi-third-party \
                         licences|names|check-sbom FILE|published|check-manifests";
            let _ = writeln!(io::stderr(), "{usage}");
            return ExitCode::from(2);
        }
    };
    let written = output.and_then(|text| {
        let written = io::stdout().lock().write_all(text.as_bytes());
        written.map_err(ListError::Write)
    });
    match written {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(io::stderr(), "third-party: {}", Report::new(&error));
            ExitCode::FAILURE
        }
    }
}

/// What cargo reports about the workspace and its dependencies.
fn metadata() -> Result<Value, ListError> {
    let output = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args(["metadata", "--format-version", "1", "--locked"])
        .args([
            "--all-features",
            "--filter-platform",
            "x86_64-unknown-linux-gnu",
        ])
        .stderr(std::process::Stdio::inherit())
        .output()
        .map_err(ListError::Start)?;
    if !output.status.success() {
        return Err(ListError::Cargo);
    }
    Ok(serde_json::from_slice(&output.stdout)?)
}

/// The crates of other projects that the program is linked with, by name and version.
fn linked() -> Result<Vec<graph::Linked>, ListError> {
    Ok(graph::linked(&metadata()?, "hikkoshi")?)
}

fn licence_texts() -> Result<String, ListError> {
    Ok(licences::text(&linked()?)?)
}

fn names() -> Result<String, ListError> {
    let crates = linked()?;
    let lines = crates
        .iter()
        .map(|one| format!("{} {}\n", one.name, one.version));
    Ok(lines.collect())
}

fn check_sbom(file: &Path) -> Result<String, ListError> {
    let read = |source| ListError::Read {
        file: file.to_owned(),
        source,
    };
    let text = std::fs::read(file).map_err(read)?;
    let bill = serde_json::from_slice(&text)?;
    let crates = linked()?;
    let count = sbom::check(&bill, &crates).map_err(|source| ListError::Sbom {
        file: file.to_owned(),
        source,
    })?;
    let linked = crates.len();
    Ok(format!(
        "{count} components, {linked} of them linked crates of others\n"
    ))
}

fn published() -> Result<String, ListError> {
    let metadata = metadata()?;
    let crates = manifests::published(&metadata)?;
    let names = crates.iter().filter_map(|one| one["name"].as_str());
    Ok(names.map(|name| format!("{name}\n")).collect())
}

fn check_manifests() -> Result<String, ListError> {
    let count = manifests::check(&metadata()?)?;
    Ok(format!("{count} manifests have what they need\n"))
}
