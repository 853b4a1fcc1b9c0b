//! What holds each RAM block, for people: also of a guest whose memory cannot be moved.

use std::sync::Arc;

use hikkoshi_linux::Process;

use super::backend;
use super::{RamError, addresses, blocks};
use crate::guest_parts::{MemoryPart, PageHolder};
use crate::process;
use crate::process::maps::Area;
use crate::qmp::human_monitor::human;
use crate::qmp::{Client, QmpError};

/// Every RAM block that QEMU migrates, in QEMU's order: from the largest to the smallest.
pub(crate) fn of_process(
    client: &mut Client,
    process: &Arc<Process>,
) -> Result<Vec<MemoryPart>, RamError> {
    let blocks = blocks::list(client)?;
    let backends = backend::list(client)?;
    let mtree = human(client, "info mtree -f -o")?;
    let areas = process::areas(process)?;
    let addresses = addresses::find(client, process, &blocks, &areas, &mtree)?;
    let mut found = Vec::with_capacity(blocks.len());
    for (block, address) in blocks.into_iter().zip(addresses) {
        let backend = backends.iter().find(|backend| backend.is(&block.name));
        let area = area(&areas, address);
        found.push(MemoryPart {
            backend: backend.map(|backend| backend.kind.clone()),
            id: block.name,
            bytes: block.total,
            share: backend.map(|backend| backend.share),
            path: area
                .filter(|area| area.is_file())
                .map(|area| area.path.clone()),
            host_page: Some(block.page_size),
            held: area.map(held),
        });
    }
    Ok(found)
}

/// The memory backends, as QMP reports them: all that can be found out without access to QEMU's
/// process.
pub(crate) fn of_backends(client: &mut Client) -> Result<Vec<MemoryPart>, QmpError> {
    let backends = backend::list(client)?.into_iter();
    let part = |backend: backend::Backend| MemoryPart {
        id: backend.id,
        backend: Some(backend.kind),
        bytes: backend.bytes,
        share: Some(backend.share),
        path: backend.path,
        host_page: None,
        held: None,
    };
    Ok(backends.map(part).collect())
}

fn area(areas: &[Area], address: u64) -> Option<&Area> {
    let first = areas.partition_point(|area| area.end <= address);
    areas.get(first).filter(|area| area.start <= address)
}

fn held(area: &Area) -> PageHolder {
    match (area.is_file(), area.shared) {
        (false, _) => PageHolder::Private,
        (true, false) => PageHolder::PrivateFile,
        // A memfd, shared anonymous memory, or a file that was removed.
        (true, true) if area.deleted => PageHolder::UnnamedFile,
        (true, true) => PageHolder::SharedFile,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::maps;

    #[test]
    fn files_with_and_without_a_name() {
        let text = "\
7f0000000000-7f0000001000 rw-s 00000000 00:1b 41 /dev/shm/guest
7f0000001000-7f0000002000 rw-s 00000000 00:01 42 /memfd:memory-backend-memfd (deleted)
7f0000002000-7f0000003000 rw-s 00000000 00:01 43 /dev/zero (deleted)
7f0000003000-7f0000004000 rw-p 00000000 00:1b 44 /dev/shm/template
7f0000004000-7f0000005000 rw-p 00000000 00:00 0
";
        let areas = maps::areas(text.as_bytes()).unwrap();
        let kinds: Vec<_> = areas.iter().map(held).collect();
        assert_eq!(
            kinds,
            [
                PageHolder::SharedFile,
                PageHolder::UnnamedFile,
                PageHolder::UnnamedFile,
                PageHolder::PrivateFile,
                PageHolder::Private,
            ]
        );
        let found = area(&areas, 0x7f00_0000_1800).unwrap();
        assert_eq!(found.inode, 42);
        assert!(area(&areas, 0x7f00_0000_5000).is_none());
    }
}
