//! Earlier migrations of a guest that are not finished: what `migrate` refuses because of its
//! journals. Nothing is locked or undone here.

use error_reporter::Report;
use hikkoshi_handover::SourceStage;

use crate::args::Check;
use crate::commands::find_journal::{may_exist, may_listen};
use crate::commands::resume_command::resume_command;
use crate::journal::{self, Entry, SourceEntry};

/// The obstacles. `pid`: QEMU's process, if it is known.
pub(super) fn obstacles(args: &Check, pid: Option<u32>) -> Vec<String> {
    let folder = args.journals.path();
    if journal::is_hidden(&folder) {
        // A user without the right to read it cannot move the guest either.
        return Vec::new();
    }
    // Of any socket: the journal is found by the process, too.
    let entries = match journal::find::<SourceEntry>(&folder, None) {
        Ok(entries) => entries,
        Err(error) => {
            return vec![format!(
                "looking for an earlier migration of this guest: {}",
                Report::new(&error)
            )];
        }
    };
    let mut found = Vec::new();
    for (path, entry) in entries {
        let identity = entry.identity();
        let is_it = match pid {
            Some(pid) => identity.pid == pid,
            None => {
                journal::absolute(&identity.qmp) == journal::absolute(&args.qmp)
                    && may_listen(&args.qmp, identity)
            }
        };
        // `migrate` undoes what was interrupted before the handover. While it is in progress,
        // its engine has exclusive access, which is an obstacle.
        if !is_it || entry.engine.stage == SourceStage::Owned {
            continue;
        }
        match may_exist(identity) {
            Ok(false) => {}
            Ok(true) => found.push(format!(
                "this guest was handed over by an earlier migration, which is not finished: never \
                 continue it here, and resume that migration: {}",
                resume_command::<SourceEntry>(&path)
            )),
            Err(error) => found.push(format!(
                "according to {} this guest may have been handed over already: {}",
                path.display(),
                Report::new(&error)
            )),
        }
    }
    found
}
