//! What the QEMU adapter keeps, as it is stored.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use hikkoshi_qemu::qmp::MonitorAddress;
use hikkoshi_qemu::{
    DestinationReattachInfo, NamespaceIdentity, QemuIdentity, RamFileIdentity, RamIdentity,
    Settings, SourceReattachInfo, UndoRecord,
};
use hikkoshi_wire::{BlockDescription, GuestDescription, GuestRangeDescription};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::RecordError;

/// [`SourceReattachInfo`].
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SourceQemuRecord {
    #[serde(rename = "place")]
    identity: QemuIdentityRecord,
    undo: UndoneStepsRecord,
}

/// [`DestinationReattachInfo`].
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct DestinationQemuRecord {
    #[serde(rename = "place")]
    identity: QemuIdentityRecord,
    settings: SettingsRecord,
    userfault: Option<i32>,
    pipe: Option<String>,
}

/// [`QemuIdentity`].
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct QemuIdentityRecord {
    /// Either this or `domain`.
    qmp: Option<String>,
    domain: Option<DomainRecord>,
    name: Option<String>,
    pid: u32,
    started: u64,
    #[serde(rename = "view")]
    namespaces: NamespaceRecord,
    description: DescriptionRecord,
    memory: Vec<MemoryRecord>,
}

/// [`MonitorAddress::Domain`].
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct DomainRecord {
    uri: String,
    uuid: String,
    name: String,
}

/// [`NamespaceIdentity`].
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct NamespaceRecord {
    boot: String,
    pids: u64,
    times: Option<u64>,
}

/// [`RamIdentity`]: a record of a file has the fields of [`FileRecord`] itself.
#[derive(Debug, Serialize, Deserialize)]
#[serde(untagged)]
enum MemoryRecord {
    File(FileRecord),
    Private(PrivateRecord),
}

/// Private memory of QEMU's process.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct PrivateRecord {
    private: u64,
    file: Option<FileRecord>,
    sent: bool,
}

/// [`RamFileIdentity`].
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct FileRecord {
    path: String,
    device: u64,
    inode: u64,
    offset: u64,
    address: u64,
}

/// [`GuestDescription`].
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct DescriptionRecord {
    machine: String,
    architecture: String,
    cpus: u32,
    cpu_model: String,
    hypervisor: String,
    running: bool,
    blocks: Vec<BlockRecord>,
}

/// [`BlockDescription`].
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct BlockRecord {
    id: String,
    bytes: u64,
    host_page: u64,
    guest: Vec<GuestRangeRecord>,
}

/// [`GuestRangeDescription`].
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct GuestRangeRecord {
    gpa: u64,
    offset: u64,
    bytes: u64,
}

/// [`UndoRecord`].
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct UndoneStepsRecord {
    settings: SettingsRecord,
    stopped: Option<bool>,
    copies: u16,
}

/// [`Settings`].
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SettingsRecord {
    capabilities: BTreeMap<String, bool>,
    parameters: Map<String, Value>,
    discard: BTreeMap<String, bool>,
}

impl TryFrom<&SourceReattachInfo> for SourceQemuRecord {
    type Error = RecordError;

    fn try_from(reattach_info: &SourceReattachInfo) -> Result<Self, RecordError> {
        Ok(Self {
            identity: (&reattach_info.identity).try_into()?,
            undo: UndoneStepsRecord {
                settings: (&reattach_info.undo.settings).into(),
                stopped: reattach_info.undo.stopped,
                copies: reattach_info.undo.copies,
            },
        })
    }
}

impl TryFrom<SourceQemuRecord> for SourceReattachInfo {
    type Error = RecordError;

    fn try_from(record: SourceQemuRecord) -> Result<Self, RecordError> {
        Ok(Self {
            identity: record.identity.try_into()?,
            undo: UndoRecord {
                settings: record.undo.settings.into(),
                stopped: record.undo.stopped,
                copies: record.undo.copies,
            },
        })
    }
}

impl TryFrom<&DestinationReattachInfo> for DestinationQemuRecord {
    type Error = RecordError;

    fn try_from(reattach_info: &DestinationReattachInfo) -> Result<Self, RecordError> {
        Ok(Self {
            identity: (&reattach_info.identity).try_into()?,
            settings: (&reattach_info.settings).into(),
            userfault: reattach_info.userfault,
            pipe: reattach_info.pipe.as_deref().map(text).transpose()?,
        })
    }
}

impl TryFrom<DestinationQemuRecord> for DestinationReattachInfo {
    type Error = RecordError;

    fn try_from(record: DestinationQemuRecord) -> Result<Self, RecordError> {
        Ok(Self {
            identity: record.identity.try_into()?,
            settings: record.settings.into(),
            userfault: record.userfault,
            pipe: record.pipe.map(Into::into),
        })
    }
}

impl TryFrom<&QemuIdentity> for QemuIdentityRecord {
    type Error = RecordError;

    fn try_from(identity: &QemuIdentity) -> Result<Self, RecordError> {
        let memory = identity.memory.iter().map(MemoryRecord::try_from);
        let (qmp, domain) = match &identity.monitor {
            MonitorAddress::Socket(path) => (Some(text(path)?), None),
            MonitorAddress::Domain { uri, uuid, name } => (
                None,
                Some(DomainRecord {
                    uri: uri.clone(),
                    uuid: uuid.clone(),
                    name: name.clone(),
                }),
            ),
        };
        Ok(Self {
            qmp,
            domain,
            name: identity.name.clone(),
            pid: identity.pid,
            started: identity.start_time,
            namespaces: NamespaceRecord {
                boot: identity.namespaces.boot_id.clone(),
                pids: identity.namespaces.pid_namespace,
                times: identity.namespaces.time_namespace,
            },
            description: (&identity.description).into(),
            memory: memory.collect::<Result<_, _>>()?,
        })
    }
}

impl TryFrom<QemuIdentityRecord> for QemuIdentity {
    type Error = RecordError;

    fn try_from(record: QemuIdentityRecord) -> Result<Self, RecordError> {
        let monitor = match (record.qmp, record.domain) {
            (Some(path), None) => MonitorAddress::Socket(path.into()),
            (None, Some(DomainRecord { uri, uuid, name })) => {
                MonitorAddress::Domain { uri, uuid, name }
            }
            _ => return Err(RecordError::Monitor),
        };
        Ok(Self {
            monitor,
            name: record.name,
            pid: record.pid,
            start_time: record.started,
            namespaces: NamespaceIdentity {
                boot_id: record.namespaces.boot,
                pid_namespace: record.namespaces.pids,
                time_namespace: record.namespaces.times,
            },
            description: record.description.into(),
            memory: record.memory.into_iter().map(Into::into).collect(),
        })
    }
}

impl TryFrom<&RamIdentity> for MemoryRecord {
    type Error = RecordError;

    fn try_from(memory: &RamIdentity) -> Result<Self, RecordError> {
        Ok(match memory {
            RamIdentity::File(file) => Self::File(file.try_into()?),
            RamIdentity::Private {
                address,
                file,
                sent,
            } => Self::Private(PrivateRecord {
                private: *address,
                file: file.as_ref().map(TryInto::try_into).transpose()?,
                sent: *sent,
            }),
        })
    }
}

impl From<MemoryRecord> for RamIdentity {
    fn from(record: MemoryRecord) -> Self {
        match record {
            MemoryRecord::File(file) => Self::File(file.into()),
            MemoryRecord::Private(memory) => Self::Private {
                address: memory.private,
                file: memory.file.map(Into::into),
                sent: memory.sent,
            },
        }
    }
}

impl TryFrom<&RamFileIdentity> for FileRecord {
    type Error = RecordError;

    fn try_from(memory: &RamFileIdentity) -> Result<Self, RecordError> {
        Ok(Self {
            path: text(&memory.path)?,
            device: memory.device,
            inode: memory.inode,
            offset: memory.offset,
            address: memory.address,
        })
    }
}

impl From<FileRecord> for RamFileIdentity {
    fn from(record: FileRecord) -> Self {
        Self {
            path: PathBuf::from(record.path),
            device: record.device,
            inode: record.inode,
            offset: record.offset,
            address: record.address,
        }
    }
}

impl From<&GuestDescription> for DescriptionRecord {
    fn from(guest: &GuestDescription) -> Self {
        Self {
            machine: guest.machine.clone(),
            architecture: guest.architecture.clone(),
            cpus: guest.cpus,
            cpu_model: guest.cpu_model.clone(),
            hypervisor: guest.hypervisor.clone(),
            running: guest.running,
            blocks: guest.blocks.iter().map(Into::into).collect(),
        }
    }
}

impl From<DescriptionRecord> for GuestDescription {
    fn from(record: DescriptionRecord) -> Self {
        Self {
            machine: record.machine,
            architecture: record.architecture,
            cpus: record.cpus,
            cpu_model: record.cpu_model,
            hypervisor: record.hypervisor,
            running: record.running,
            blocks: record.blocks.into_iter().map(Into::into).collect(),
        }
    }
}

impl From<&BlockDescription> for BlockRecord {
    fn from(block: &BlockDescription) -> Self {
        let guest = block.guest.iter().map(|range| GuestRangeRecord {
            gpa: range.gpa,
            offset: range.offset,
            bytes: range.bytes,
        });
        Self {
            id: block.id.clone(),
            bytes: block.bytes,
            host_page: block.host_page,
            guest: guest.collect(),
        }
    }
}

impl From<BlockRecord> for BlockDescription {
    fn from(record: BlockRecord) -> Self {
        let guest = record.guest.iter().map(|range| GuestRangeDescription {
            gpa: range.gpa,
            offset: range.offset,
            bytes: range.bytes,
        });
        Self {
            id: record.id,
            bytes: record.bytes,
            host_page: record.host_page,
            guest: guest.collect(),
        }
    }
}

impl From<&Settings> for SettingsRecord {
    fn from(settings: &Settings) -> Self {
        Self {
            capabilities: settings.capabilities.clone(),
            parameters: settings.parameters.clone(),
            discard: settings.discard.clone(),
        }
    }
}

impl From<SettingsRecord> for Settings {
    fn from(record: SettingsRecord) -> Self {
        Self {
            capabilities: record.capabilities,
            parameters: record.parameters,
            discard: record.discard,
        }
    }
}

/// A path as JSON can hold it.
fn text(path: &Path) -> Result<String, RecordError> {
    let text = path.to_str().map(str::to_owned);
    text.ok_or_else(|| RecordError::Path(path.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;

    #[test]
    fn copies_of_disks_are_recorded() {
        let record = |copies| UndoneStepsRecord {
            settings: (&Settings::default()).into(),
            stopped: None,
            copies,
        };
        let text = |copies| serde_json::to_string(&record(copies)).unwrap();
        assert!(text(0).contains(r#""copies":0"#));
        assert!(text(3).contains(r#""copies":3"#));
        for copies in [0, 3] {
            let read: UndoneStepsRecord = serde_json::from_str(&text(copies)).unwrap();
            assert_eq!(read.copies, copies);
        }
    }

    #[test]
    fn memory_of_each_kind_is_kept() {
        let file = RamFileIdentity {
            path: "/memfd:ram".into(),
            device: 1,
            inode: 2,
            offset: 4096,
            address: 0x7f00_0000_0000,
        };
        let private = |file, sent| RamIdentity::Private {
            address: 0x7f00_0000_0000,
            file,
            sent,
        };
        for (memory, text) in [
            (
                RamIdentity::File(file.clone()),
                r#"{"path":"/memfd:ram","device":1,"inode":2,"offset":4096,"address":139637976727552}"#,
            ),
            (
                private(None, false),
                r#"{"private":139637976727552,"file":null,"sent":false}"#,
            ),
            (
                private(None, true),
                r#"{"private":139637976727552,"file":null,"sent":true}"#,
            ),
            (
                private(Some(file), false),
                r#"{"private":139637976727552,"file":{"path":"/memfd:ram","device":1,"inode":2,"offset":4096,"address":139637976727552},"sent":false}"#,
            ),
        ] {
            let record = MemoryRecord::try_from(&memory).unwrap();
            assert_eq!(serde_json::to_string(&record).unwrap(), text);
            let read: MemoryRecord = serde_json::from_str(text).unwrap();
            assert_eq!(RamIdentity::from(read), memory);
        }
        for bad in ["{}", r#"{"private":1,"path":"/x"}"#, r#"{"private":-1}"#] {
            assert!(serde_json::from_str::<MemoryRecord>(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_path_that_is_not_text_is_refused() {
        assert_eq!(text(Path::new("/a b")).unwrap(), "/a b");
        let odd = Path::new(OsStr::from_bytes(b"/a\xff"));
        let error = text(odd).unwrap_err();
        assert!(error.to_string().contains("not UTF-8"), "{error}");
    }
}
