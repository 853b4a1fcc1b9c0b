//! Finds the guest's memory: backends, guest addresses, host addresses, files.
//!
//! | what | from |
//! | --- | --- |
//! | the backends, their sizes, sharing, paths | QMP: `qom-list /objects`, `qom-get` |
//! | guest addresses | `info mtree -f -o` by QMP (see `mtree.rs`) |
//! | host addresses | `/proc/PID/maps` |
//! | the files | QEMU's mappings (see `reopen.rs`); QEMU's path only selects one |
//!
//! With `x-ignore-shared` QEMU omits every shared block from its stream, because
//! hikkoshi transfers it. A shared block that hikkoshi cannot transfer, or does not
//! know, would be lost silently. So every backend must be of a supported kind, and
//! together they must contain all of the machine's memory.

pub(crate) mod backend;
pub(crate) mod blocks;
mod error;
mod file;
pub(crate) mod free_space;
pub(crate) mod mtree;

use hikkoshi_linux::Process;
use hikkoshi_memory::{GuestRam, RamFile};
use hikkoshi_pages::{GuestRange, RamBlock, RamLayout};
use serde_json::{Value, json};

use self::backend::Backend;
pub use self::error::RamError;
use self::file::BackendFile;
use crate::attach::process;
use crate::attach::reopen::FileAccess;
use crate::qmp::Client;

/// The guest's memory.
#[derive(Debug)]
pub(crate) struct Ram {
    /// Layout and files, ordered by guest address.
    pub(crate) files: GuestRam,
    /// Where each block begins in QEMU's address space, in layout order.
    pub(crate) addresses: Vec<u64>,
}

/// Finds all of the guest's memory.
///
/// At the destination ([`FileAccess::Write`]), also checks the free space for it.
pub(crate) fn find(
    client: &mut Client,
    process: &Process,
    access: FileAccess,
) -> Result<Ram, RamError> {
    let backends = backend::list(client)?;
    check_kinds(&backends)?;
    let mtree = client.execute(
        "human-monitor-command",
        json!({ "command-line": "info mtree -f -o" }),
    )?;
    let guest = guest_ranges(&backends, mtree.as_str().unwrap_or_default())?;
    check_complete(client, &backends)?;
    let mappings = process::mappings(process)?;
    let mut found = Vec::with_capacity(backends.len());
    for (backend, guest) in backends.iter().zip(guest) {
        let file = file::find(process, &mappings, backend, access)?;
        found.push((backend, guest, file));
    }
    check_distinct(&found)?;
    if access == FileAccess::Write {
        free_space::check(found.iter().map(|(backend, _, file)| (*backend, file)))?;
    }
    // The same order on both sides, independent of the order of the options.
    found.sort_by_key(|(backend, guest, _)| {
        (guest.first().map(|range| range.gpa), backend.id.clone())
    });
    let mut blocks = Vec::with_capacity(found.len());
    let mut files = Vec::with_capacity(found.len());
    let mut addresses = Vec::with_capacity(found.len());
    for (backend, guest, file) in found {
        blocks.push(RamBlock {
            id: backend.id.clone(),
            bytes: backend.bytes,
            host_page: file.host_page,
            guest,
        });
        files.push(RamFile::new(file.file, backend.offset));
        addresses.push(file.address);
    }
    let layout = RamLayout::new(blocks)?;
    // There are as many files as blocks.
    let files = GuestRam::new(layout, files).ok_or(RamError::None)?;
    Ok(Ram { files, addresses })
}

fn check_kinds(backends: &[Backend]) -> Result<(), RamError> {
    if backends.is_empty() {
        return Err(RamError::None);
    }
    for backend in backends {
        let id = backend.id.clone();
        if backend.kind != "memory-backend-file" {
            let kind = backend.kind.clone();
            return Err(RamError::NotAFile { id, kind });
        }
        if !backend.share {
            let path = backend.path.clone().unwrap_or_default();
            return Err(RamError::NotShared { id, path });
        }
        if backend.readonly {
            return Err(RamError::ReadOnly { id });
        }
    }
    Ok(())
}

fn guest_ranges(backends: &[Backend], mtree: &str) -> Result<Vec<Vec<GuestRange>>, RamError> {
    let pieces = mtree::parse(mtree);
    let mut found = Vec::with_capacity(backends.len());
    for backend in backends {
        let id = backend.id.clone();
        let Some(pieces) = pieces.get(&backend.qom_path()) else {
            return Err(RamError::NotInGuest { id });
        };
        let ranges = mtree::ranges(pieces, backend.bytes).ok_or_else(|| RamError::Addresses {
            id,
            pieces: format!("{pieces:x?}"),
        })?;
        found.push(ranges);
    }
    Ok(found)
}

fn check_complete(client: &mut Client, backends: &[Backend]) -> Result<(), RamError> {
    let summary = client.execute("query-memory-size-summary", json!({}))?;
    let part = |key| summary.get(key).and_then(Value::as_u64).unwrap_or(0);
    let guest = part("base-memory").saturating_add(part("plugged-memory"));
    let backends = backends
        .iter()
        .fold(0u64, |sum, backend| sum.saturating_add(backend.bytes));
    if guest > backends {
        return Err(RamError::Incomplete { guest, backends });
    }
    Ok(())
}

fn check_distinct(found: &[(&Backend, Vec<GuestRange>, BackendFile)]) -> Result<(), RamError> {
    let mut seen: Vec<(u64, u64, &str)> = found
        .iter()
        .map(|(backend, _, file)| {
            let end = file.address.saturating_add(backend.bytes);
            (file.address, end, backend.id.as_str())
        })
        .collect();
    seen.sort_unstable();
    if let Some(pair) = seen.windows(2).find(|pair| pair[1].0 < pair[0].1) {
        return Err(RamError::SharedFile {
            first: pair[0].2.to_owned(),
            second: pair[1].2.to_owned(),
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn backend(id: &str) -> Backend {
        Backend {
            id: id.to_owned(),
            kind: "memory-backend-file".to_owned(),
            bytes: 1 << 20,
            share: true,
            reserve: true,
            readonly: false,
            path: Some("/dev/shm/x".to_owned()),
            offset: 0,
        }
    }

    #[test]
    fn only_shared_writable_files_are_supported() {
        check_kinds(&[backend("a")]).unwrap();
        assert!(matches!(check_kinds(&[]), Err(RamError::None)));
        for kind in [
            "memory-backend-ram",
            "memory-backend-memfd",
            "memory-backend-shm",
        ] {
            let other = Backend {
                kind: kind.to_owned(),
                ..backend("b")
            };
            let error = check_kinds(&[backend("a"), other]).unwrap_err();
            let text = error.to_string();
            assert!(text.contains(kind) && text.contains("\"b\""), "{text}");
            assert!(text.contains("share=on"), "{text}");
        }
        let private = Backend {
            share: false,
            ..backend("a")
        };
        let text = check_kinds(&[private]).unwrap_err().to_string();
        assert!(text.contains("share=off"), "{text}");
        let fixed = Backend {
            readonly: true,
            ..backend("a")
        };
        assert!(matches!(
            check_kinds(&[fixed]),
            Err(RamError::ReadOnly { .. })
        ));
    }

    #[test]
    fn a_backend_outside_the_guests_memory_is_named() {
        let error = guest_ranges(&[backend("spare")], "").unwrap_err();
        assert!(error.to_string().contains("\"spare\""));
    }
}
