//! The journals of a daemon's guests.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use hikkoshi_handover::DestinationStage;
use hikkoshi_link::tls::Route;

/// The journal of a guest that a daemon has received, or receives.
#[derive(Debug)]
pub(super) struct GuestJournal {
    pub(super) guest: String,
    pub(super) path: PathBuf,
    pub(super) stage: DestinationStage,
    /// How its source reaches it.
    pub(super) route: Option<Route>,
}

#[cfg(test)]
impl GuestJournal {
    pub(super) fn without_route(guest: &str, path: &Path, stage: DestinationStage) -> Self {
        Self {
            guest: guest.to_owned(),
            path: path.to_owned(),
            stage,
            route: None,
        }
    }
}

/// The journals in the run folder.
#[derive(Debug)]
pub(super) struct Journals {
    pub(super) known: Vec<GuestJournal>,
    /// When others were written last, which cannot be read.
    pub(super) unreadable: Vec<SystemTime>,
}

impl Journals {
    /// Whether a journal that cannot be read may be that of a guest to whose receiver this file
    /// leads, and which has no other one: a guest has its file before it has a journal.
    pub(super) fn may_have_one(&self, file: &Path) -> bool {
        // What is not known may be true.
        let made = fs::symlink_metadata(file).and_then(|file| file.modified());
        let is_older = |written: &SystemTime| made.as_ref().map_or(true, |made| made <= written);
        self.unreadable.iter().any(is_older)
    }

    /// The journal of this guest.
    pub(super) fn journal_of(&self, guest: &str) -> Option<&GuestJournal> {
        self.known.iter().find(|journal| journal.guest == guest)
    }

    /// The guests that have one.
    pub(super) fn guests(&self) -> impl Iterator<Item = &str> {
        self.known.iter().map(|journal| journal.guest.as_str())
    }
}

#[cfg(test)]
impl Journals {
    /// Journals with these paths, of guests that are ready to run.
    pub(super) fn at(paths: &[&str]) -> Self {
        let journal = |path: &&str| {
            GuestJournal::without_route("guest", Path::new(path), DestinationStage::Ready)
        };
        Self {
            known: paths.iter().map(journal).collect(),
            unreadable: Vec::new(),
        }
    }
}
