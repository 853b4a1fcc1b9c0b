//! The whole file: one JSON object.

use serde::{Deserialize, Serialize};

use hikkoshi_link::tls::{DestinationCredentials, SourceCredentials};

use super::engine::{DestinationEngineRecord, SourceEngineRecord};
use super::qemu::{DestinationQemuRecord, SourceQemuRecord};
use super::{RecordError, VERSION};
use crate::args::{MigrateOptions, ReceiveOptions};
use crate::journal::entry::{DestinationEntry, Entry, SourceEntry};

#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum SideTag {
    #[serde(rename = "source")]
    Source,
    #[serde(rename = "destination")]
    Destination,
}

/// The side, apart from the rest: the two sides' records differ.
#[derive(Deserialize)]
struct SideOnly {
    side: SideTag,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SourceFile<C> {
    version: u32,
    side: SideTag,
    address: String,
    plaintext: bool,
    options: MigrateOptions,
    security: Option<C>,
    engine: SourceEngineRecord,
    qemu: SourceQemuRecord,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct DestinationFile<C> {
    version: u32,
    side: SideTag,
    address: String,
    plaintext: bool,
    options: ReceiveOptions,
    security: Option<C>,
    engine: DestinationEngineRecord,
    qemu: DestinationQemuRecord,
}

pub(super) fn encode_source(entry: &SourceEntry) -> Result<Vec<u8>, RecordError> {
    let file = SourceFile {
        version: VERSION,
        side: SideTag::Source,
        address: entry.address.to_string(),
        plaintext: entry.plaintext,
        options: entry.options.clone(),
        security: entry.security.as_ref(),
        engine: (&entry.engine).into(),
        qemu: (&entry.qemu).try_into()?,
    };
    Ok(serde_json::to_vec_pretty(&file)?)
}

pub(super) fn encode_destination(entry: &DestinationEntry) -> Result<Vec<u8>, RecordError> {
    let file = DestinationFile {
        version: VERSION,
        side: SideTag::Destination,
        address: entry.address.to_string(),
        plaintext: entry.plaintext,
        options: entry.options.clone(),
        security: entry.security.as_ref(),
        engine: (&entry.engine).into(),
        qemu: (&entry.qemu).try_into()?,
    };
    Ok(serde_json::to_vec_pretty(&file)?)
}

pub(super) fn decode_source(text: &[u8]) -> Result<SourceEntry, RecordError> {
    check_side(text, SideTag::Source)?;
    let file: SourceFile<SourceCredentials> = serde_json::from_slice(text)?;
    Ok(SourceEntry {
        address: file.address.parse()?,
        plaintext: file.plaintext,
        options: file.options,
        security: file.security,
        engine: file.engine.try_into()?,
        qemu: file.qemu.try_into()?,
    })
}

pub(super) fn decode_destination(text: &[u8]) -> Result<DestinationEntry, RecordError> {
    check_side(text, SideTag::Destination)?;
    let file: DestinationFile<DestinationCredentials> = serde_json::from_slice(text)?;
    Ok(DestinationEntry {
        address: file.address.parse()?,
        plaintext: file.plaintext,
        options: file.options,
        security: file.security,
        engine: file.engine.try_into()?,
        qemu: file.qemu.try_into()?,
    })
}

fn check_side(text: &[u8], expected: SideTag) -> Result<(), RecordError> {
    let SideOnly { side } = serde_json::from_slice(text)?;
    let (found, command) = match side {
        _ if side == expected => return Ok(()),
        SideTag::Source => (SourceEntry::SIDE, SourceEntry::COMMAND),
        SideTag::Destination => (DestinationEntry::SIDE, DestinationEntry::COMMAND),
    };
    Err(RecordError::Side { found, command })
}
