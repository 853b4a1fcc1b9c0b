//! Reads the kept fuzz inputs and replays them in ordinary tests.
//!
//! `fuzz/corpora` holds one tar archive for each fuzz target. Their SHA-256 checksums are in
//! `fuzz/corpora/SHA256SUMS`, so that an archive that is damaged, or that has lost an input, fails
//! the tests. `make fuzz-add` adds inputs to an archive and updates its checksum.

use std::collections::BTreeMap;
use std::error::Error;
use std::fs;
use std::io::{self, Read};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};

/// The name of a fuzz target, and the function that it calls with each input.
pub type Target = (&'static str, fn(&[u8]));

/// The inputs of one archive, by name.
pub type Inputs = BTreeMap<String, Vec<u8>>;

/// An archive that cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CorpusError {
    /// The archive or the list of checksums cannot be read.
    #[error("cannot read {path}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// The list of checksums does not name the archive.
    #[error("SHA256SUMS does not list {0}.tar")]
    NotListed(String),
    /// The archive differs from the one that the list was written for.
    #[error("{0}.tar does not match its checksum in SHA256SUMS; add inputs with `make fuzz-add`")]
    Checksum(String),
    /// The archive holds nothing.
    #[error("{0}.tar holds no inputs")]
    Empty(String),
}

/// The archives, as the repository has them.
fn corpora() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../corpora")
}

/// Calls each target of `group` with each of its inputs. The archive of a target is
/// `GROUP_TARGET.tar`.
///
/// # Panics
///
/// If a target panics; a message after the panic names the input. If an archive is missing, empty
/// or damaged. If `targets` are not exactly the targets that the group has archives for.
pub fn replay(group: &str, targets: &[Target]) {
    replay_in(&corpora(), group, targets);
}

fn replay_in(corpora: &Path, group: &str, targets: &[Target]) {
    let prefix = format!("{group}_");
    let mut archives = checksums(corpora).unwrap_or_else(|error| fail(&error));
    archives.retain(|name, _| name.starts_with(&prefix));
    let mut names: Vec<_> = targets
        .iter()
        .map(|(name, _)| format!("{prefix}{name}"))
        .collect();
    names.sort();
    assert!(
        archives.keys().eq(&names),
        "archives {:?}, but targets {names:?}",
        archives.keys()
    );
    for (name, run) in targets {
        let name = format!("{prefix}{name}");
        let inputs = inputs_in(corpora, &name).unwrap_or_else(|error| fail(&error));
        for (input, bytes) in &inputs {
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| run(bytes))) {
                #[allow(clippy::print_stderr, reason = "the test's output")]
                {
                    eprintln!("the input is {input} in {name}.tar");
                }
                resume_unwind(panic);
            }
        }
    }
}

fn fail(error: &CorpusError) -> ! {
    match error.source() {
        Some(source) => panic!("{error}: {source}"),
        None => panic!("{error}"),
    }
}

/// The inputs in the archive of `target` (`wire_stream`).
///
/// # Errors
///
/// If the archive is missing, empty or does not match its checksum.
pub fn inputs(target: &str) -> Result<Inputs, CorpusError> {
    inputs_in(&corpora(), target)
}

fn inputs_in(corpora: &Path, target: &str) -> Result<Inputs, CorpusError> {
    let path = corpora.join(format!("{target}.tar"));
    let checksums = checksums(corpora)?;
    let expected = checksums
        .get(target)
        .ok_or_else(|| CorpusError::NotListed(target.into()))?;
    let archive = read(&path)?;
    if checksum(&archive) != *expected {
        return Err(CorpusError::Checksum(target.into()));
    }
    let inputs = unpack(&archive).map_err(|source| CorpusError::Read { path, source })?;
    if inputs.is_empty() {
        return Err(CorpusError::Empty(target.into()));
    }
    Ok(inputs)
}

fn unpack(archive: &[u8]) -> io::Result<Inputs> {
    let mut inputs = Inputs::new();
    for entry in tar::Archive::new(archive).entries()? {
        let mut entry = entry?;
        let name = entry.path()?.to_string_lossy().into_owned();
        let mut bytes = Vec::new();
        entry.read_to_end(&mut bytes)?;
        if !entry.header().entry_type().is_file() || inputs.insert(name.clone(), bytes).is_some() {
            let reason = format!("{name} is there twice, or is not a file");
            return Err(io::Error::new(io::ErrorKind::InvalidData, reason));
        }
    }
    Ok(inputs)
}

/// The checksums in `SHA256SUMS`, by target.
fn checksums(corpora: &Path) -> Result<BTreeMap<String, String>, CorpusError> {
    let list = read(&corpora.join("SHA256SUMS"))?;
    let list = String::from_utf8_lossy(&list);
    let lines = list.lines().filter_map(|line| line.split_once("  "));
    Ok(lines
        .filter_map(|(sum, file)| Some((file.strip_suffix(".tar")?.to_owned(), sum.to_owned())))
        .collect())
}

fn checksum(bytes: &[u8]) -> String {
    let digest = ring::digest::digest(&ring::digest::SHA256, bytes);
    digest
        .as_ref()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

fn read(path: &Path) -> Result<Vec<u8>, CorpusError> {
    fs::read(path).map_err(|source| CorpusError::Read {
        path: path.to_owned(),
        source,
    })
}

#[cfg(test)]
mod tests;
