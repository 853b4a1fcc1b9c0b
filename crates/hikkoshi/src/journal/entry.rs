//! The content of a journal, as it is stored.

use std::fmt;

use hikkoshi_handover::{DestinationRecord, DestinationStage, SourceRecord, SourceStage};
use hikkoshi_link::Address;
use hikkoshi_link::tls::{DestinationCredentials, SourceCredentials};
use hikkoshi_qemu::{DestinationReattachInfo, QemuIdentity, SourceReattachInfo};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::args::{MigrateOptions, ReceiveOptions};

/// A source's journal.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SourceEntry {
    /// The destination's address.
    #[serde(with = "as_text")]
    pub address: Address,
    /// Whether `--plaintext` was given for that address.
    pub plaintext: bool,
    /// Other options of the command line.
    pub options: MigrateOptions,
    /// How the links are protected, if they are.
    pub security: Option<SourceCredentials>,
    /// What the engine needs to resume.
    pub engine: SourceRecord,
    /// What the QEMU adapter needs to reattach.
    pub qemu: SourceReattachInfo,
}

/// A destination's journal.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct DestinationEntry {
    /// The address it listened on.
    #[serde(with = "as_text")]
    pub address: Address,
    /// Whether `--plaintext` was given for that address.
    pub plaintext: bool,
    /// Other options of the command line.
    pub options: ReceiveOptions,
    /// How the links are protected, if they are.
    pub security: Option<DestinationCredentials>,
    /// What the engine needs to resume.
    pub engine: DestinationRecord,
    /// What the QEMU adapter needs to reattach.
    pub qemu: DestinationReattachInfo,
}

/// A journal of either side.
pub(crate) trait JournalEntry: fmt::Debug + Send + Serialize + DeserializeOwned {
    /// The side, for file names.
    const SIDE: &'static str;
    /// The command that resumes this side.
    const COMMAND: &'static str;
    /// What the engine keeps in it.
    type EngineRecord: Clone;
    /// The QEMU process.
    fn identity(&self) -> &QemuIdentity;
    /// Whether nothing is left to resume when its QEMU has ended: the guest ended with it, and the
    /// other side does not wait for an answer.
    fn ends_with_qemu(&self) -> bool;
    /// Whether the migration was given up here, and the journal is left only as the answer to a
    /// source that asks: the guest has never run here and never will.
    fn is_given_up(&self) -> bool;
    /// What the engine keeps in it.
    fn engine_mut(&mut self) -> &mut Self::EngineRecord;
}

/// An address as text.
mod as_text {
    use hikkoshi_link::Address;
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(address: &Address, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(address)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Address, D::Error> {
        String::deserialize(from)?.parse().map_err(D::Error::custom)
    }
}

impl JournalEntry for SourceEntry {
    const SIDE: &'static str = "source";
    const COMMAND: &'static str = "migrate";
    type EngineRecord = SourceRecord;

    fn identity(&self) -> &QemuIdentity {
        &self.qemu.identity
    }

    fn ends_with_qemu(&self) -> bool {
        self.engine.stage == SourceStage::Owned
    }

    fn is_given_up(&self) -> bool {
        false
    }

    fn engine_mut(&mut self) -> &mut SourceRecord {
        &mut self.engine
    }
}

impl JournalEntry for DestinationEntry {
    const SIDE: &'static str = "destination";
    const COMMAND: &'static str = "receive";
    type EngineRecord = DestinationRecord;

    fn identity(&self) -> &QemuIdentity {
        &self.qemu.identity
    }

    fn ends_with_qemu(&self) -> bool {
        matches!(
            self.engine.stage,
            DestinationStage::Receiving | DestinationStage::Running
        )
    }

    fn is_given_up(&self) -> bool {
        self.engine.given_up && self.engine.stage == DestinationStage::Declined
    }

    fn engine_mut(&mut self) -> &mut DestinationRecord {
        &mut self.engine
    }
}
