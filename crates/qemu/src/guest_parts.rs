//! What each part of a guest means for a move.

use serde::Serialize;

/// A RAM block; without access to QEMU's process, a memory backend.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct MemoryPart {
    /// Its name.
    pub id: String,
    /// The type of its backend, such as `memory-backend-file`. `None`: it belongs to a device or
    /// to the firmware (video memory, flash, ROMs, tables).
    pub backend: Option<String>,
    /// Its size in bytes.
    pub bytes: u64,
    /// Whether the backend is shared (`share=on`).
    pub share: Option<bool>,
    /// Its file, or the backend's file or folder.
    pub path: Option<String>,
    /// The size of its host pages in bytes, if it was found in QEMU's process.
    #[serde(rename = "host_page_bytes")]
    pub host_page: Option<u64>,
    /// What holds it, if it was found in QEMU's process.
    pub held: Option<PageHolder>,
}

/// What holds a RAM block's pages: what is left of them when QEMU ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PageHolder {
    /// A file with a name, mapped shared: it stays when QEMU ends.
    SharedFile,
    /// A file without a name, mapped shared (a memfd): it exists as long as a process has it open.
    UnnamedFile,
    /// A file that is mapped privately: what the guest has written ends with QEMU.
    PrivateFile,
    /// QEMU's process only: it ends with QEMU.
    Private,
}

/// A device, a network backend or a disk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct GuestPart {
    /// Its path in QEMU's object tree, or its name.
    pub name: String,
    /// Its type.
    pub kind: String,
    /// For a disk: its file. Otherwise empty.
    #[serde(rename = "file", skip_serializing_if = "String::is_empty")]
    pub detail: String,
    /// What it means.
    #[serde(flatten)]
    pub verdict: Verdict,
}

/// What a part means for a move.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "verdict", content = "why")]
pub enum Verdict {
    /// It can be moved in every mode.
    Moves,
    /// It can be moved in every mode; pre-copy rounds drain it, because it writes into pinned
    /// pages.
    Drained,
    /// It can be moved in post-copy only, for this reason.
    PostcopyOnly(&'static str),
    /// It can be moved in pre-copy only, for this reason.
    PrecopyOnly(&'static str),
    /// It cannot be moved, for this reason.
    Refused(&'static str),
    /// Its type is not known, and the guest is refused.
    Unknown,
    /// Its type is not known, and the user allows it.
    Allowed,
}
