//! What each part of a guest means for a move.

use hikkoshi_pages::RamLayout;

use crate::attach::ram::backend;
use crate::qmp::{Client, QmpError};

/// A memory backend.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemoryPart {
    /// Its id.
    pub id: String,
    /// Its type, such as `memory-backend-file`.
    pub kind: String,
    /// Its size in bytes.
    pub bytes: u64,
    /// Whether it is shared (`share=on`).
    pub share: bool,
    /// Its file or folder.
    pub path: Option<String>,
    /// The size of its host pages in bytes, if it was found in QEMU's process.
    pub host_page: Option<u64>,
}

/// A device, a network backend or a disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// Its path in QEMU's object tree, or its name.
    pub name: String,
    /// Its type.
    pub kind: String,
    /// For a disk: its file. Otherwise empty.
    pub detail: String,
    /// What it means.
    pub verdict: Verdict,
}

/// What a part means for a move.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It can be moved in every mode.
    Moves,
    /// It can be moved in every mode; pre-copy rounds drain it, because it writes into pinned
    /// pages.
    Drained,
    /// It can be moved in post-copy only, for this reason.
    PostcopyOnly(&'static str),
    /// It cannot be moved, for this reason.
    Refused(&'static str),
    /// Its type is not known, and the guest is refused.
    Unknown,
    /// Its type is not known, and the user allows it.
    Allowed,
}

/// The memory backends. `layout`: what was found in the process.
pub(super) fn memory(
    client: &mut Client,
    layout: Option<&RamLayout>,
) -> Result<Vec<MemoryPart>, QmpError> {
    let host_page = |id: &str| {
        let mut blocks = layout?.blocks();
        let (block, _) = blocks.find(|(block, _)| block.id == id)?;
        Some(block.host_page)
    };
    let found = backend::list(client)?;
    let parts = found.into_iter().map(|backend| MemoryPart {
        host_page: host_page(&backend.id),
        id: backend.id,
        kind: backend.kind,
        bytes: backend.bytes,
        share: backend.share,
        path: backend.path,
    });
    Ok(parts.collect())
}
