//! Version 2, which is only read. Options are words of the command line.

use clap::{Args, CommandFactory, FromArgMatches, Parser};
use hikkoshi_link::tls::{DestinationCredentials, SourceCredentials};
use serde::Deserialize;

use super::RecordError;
use super::engine::{DestinationEngineRecord, SourceEngineRecord};
use super::qemu::{DestinationQemuRecord, SourceQemuRecord};
use crate::args::{MigrateOptions, ReceiveOptions};
use crate::journal::entry::{DestinationEntry, SourceEntry};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SourceFile {
    #[serde(rename = "form")]
    _form: u32,
    address: String,
    options: Vec<String>,
    security: Option<SourceCredentials>,
    engine: SourceEngineRecord,
    qemu: SourceQemuRecord,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DestinationFile {
    #[serde(rename = "form")]
    _form: u32,
    address: String,
    options: Vec<String>,
    security: Option<DestinationCredentials>,
    engine: DestinationEngineRecord,
    qemu: DestinationQemuRecord,
}

/// The options that version 2 stored.
#[derive(Parser)]
#[command(no_binary_name = true, args_override_self = true)]
struct Words<O: Args> {
    #[command(flatten)]
    options: O,
    #[arg(long)]
    plaintext: bool,
}

pub(super) fn decode_source(text: &[u8]) -> Result<SourceEntry, RecordError> {
    let file: SourceFile = serde_json::from_slice(text)?;
    let words: Words<MigrateOptions> = parse(&file.options)?;
    Ok(SourceEntry {
        address: file.address.parse()?,
        plaintext: words.plaintext,
        options: words.options,
        security: file.security,
        engine: file.engine.try_into()?,
        qemu: file.qemu.into(),
    })
}

pub(super) fn decode_destination(text: &[u8]) -> Result<DestinationEntry, RecordError> {
    let file: DestinationFile = serde_json::from_slice(text)?;
    let words: Words<ReceiveOptions> = parse(&file.options)?;
    Ok(DestinationEntry {
        address: file.address.parse()?,
        plaintext: words.plaintext,
        options: words.options,
        security: file.security,
        engine: file.engine.try_into()?,
        qemu: file.qemu.into(),
    })
}

/// Parses the words. After several resumes the same option may be there more than once; the last
/// one counts.
fn parse<O: Args>(words: &[String]) -> Result<Words<O>, RecordError> {
    let failed = |error: clap::Error| RecordError::Words(Box::new(error));
    let matches = Words::<O>::command()
        .try_get_matches_from(words)
        .map_err(failed)?;
    Words::from_arg_matches(&matches).map_err(failed)
}
