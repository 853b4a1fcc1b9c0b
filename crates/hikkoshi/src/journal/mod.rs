//! The journal: what is stored about a migration on this host, so that `--resume` can continue it
//! after the engine was killed or has stopped retrying.
//!
//! There is one file for each side of a migration, named after QEMU's process. Only its owner can
//! read it: it holds the migration's secret number and keys. It is replaced as a whole, so that a
//! reader finds the old or the new content, and removed when the migration is over on both sides.
//! A process that works with it holds a lock. Because it names a process to access, perhaps as
//! root, a file that another user could have written is not read (`permissions.rs`).

mod entry;
mod file;
mod folder;
mod lock;
mod offline;
mod paths;
mod permissions;
mod record;

pub(crate) use entry::{DestinationEntry, JournalEntry, SourceEntry};
pub(crate) use file::JournalFile;
pub(crate) use folder::{find, is_hidden, owner, search, unreadable};
pub(crate) use lock::{LockHolder, is_held};
pub(crate) use offline::OfflineJournal;
pub(crate) use paths::{absolute, absolute_address};
#[cfg(test)]
pub(crate) use record::decode;
