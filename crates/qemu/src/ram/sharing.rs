//! Whether a destination's memory is in use by another process: by the QEMU that the guest is to
//! leave, for example, if the destination was started with the same file. A destination empties its
//! memory. Only this host's processes are seen, and of those only which may be examined.

use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;

use error_reporter::Report;
use hikkoshi_linux::Process;
use hikkoshi_memory::GuestRam;

use super::RamError;
use crate::process::exclusive_access;

/// Shared files of `memory` that other processes than `process` have mapped. Adds to `warnings`,
/// for people, what could not be found out.
pub(crate) fn check(
    process: &Process,
    memory: &GuestRam,
    warnings: &mut Vec<String>,
) -> Vec<RamError> {
    let mut found = Vec::new();
    for ((block, _), backing) in memory.layout().blocks().zip(memory.backings()) {
        let Some(file) = backing.file().map(hikkoshi_memory::RamFile::file) else {
            continue;
        };
        let user = file
            .metadata()
            .and_then(|file| exclusive_access::find_user(file.dev(), file.ino(), Some(process)));
        match user {
            Ok(None) => {}
            Ok(Some((user, name))) => {
                let path = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()));
                found.push(RamError::InUse {
                    id: block.id.clone(),
                    path: path.map_or_else(|_| "?".to_owned(), |path| path.display().to_string()),
                    user,
                    name,
                });
            }
            Err(error) => {
                warnings.push(format!(
                    "looking for other processes that use the guest's memory \"{}\": {}",
                    block.id,
                    Report::new(&error)
                ));
            }
        }
    }
    found
}
