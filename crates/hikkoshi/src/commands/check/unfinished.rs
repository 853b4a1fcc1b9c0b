//! Earlier migrations of a guest that are not finished: what `migrate` refuses because of its
//! journals. Nothing is locked or undone here.

use std::path::PathBuf;

use error_reporter::Report;
use hikkoshi_handover::SourceStage;
use hikkoshi_qemu::qmp::MonitorSocket;

use crate::args::Check;
use crate::commands::resume_command::resume_command;
use crate::commands::unfinished_migration::{
    HANDED_OVER, MOVED, Searched, Undecided, cannot_search, find, may_be_handed_over,
};
use crate::journal::SourceEntry;

/// The obstacles. `pid`: QEMU's process, if it is known.
pub(super) fn obstacles(args: &Check, pid: Option<u32>) -> Vec<String> {
    let socket = args.qmp.as_ref().map(MonitorSocket::new);
    let qemu = match (pid, &socket) {
        (Some(pid), _) => Searched::Process(pid),
        (None, Some(socket)) => Searched::Behind(socket),
        // The process of a domain is always known.
        (None, None) => return Vec::new(),
    };
    let found = match find::<SourceEntry>(&args.journals.path(), qemu) {
        Ok(found) => found,
        Err(error) => return vec![cannot_search("of this guest", &error)],
    };
    found.filter_map(obstacle).collect()
}

fn obstacle(found: Result<(PathBuf, SourceEntry), Undecided>) -> Option<String> {
    match found {
        // `migrate` undoes what was interrupted before the handover. While it is in progress,
        // its engine has exclusive access, which is an obstacle.
        Ok((_, entry)) if entry.engine.stage == SourceStage::Owned => None,
        Ok((path, entry)) if entry.engine.stage == SourceStage::Done => Some(format!(
            "{MOVED}: never continue it here. This command ends it: {}",
            resume_command::<SourceEntry>(&path)
        )),
        Ok((path, _)) => Some(format!(
            "{HANDED_OVER}: never continue it here, and resume that migration: {}",
            resume_command::<SourceEntry>(&path)
        )),
        Err(Undecided { path, error }) => Some(format!(
            "{}: {}",
            may_be_handed_over(&path),
            Report::new(&error)
        )),
    }
}
