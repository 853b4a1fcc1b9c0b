//! The time of a recording's file: when the other side was seen last.
//!
//! The recording is stored every few seconds. If the engine is killed, the next one wants to know
//! more exactly since when the guest has no links.

use std::fs::{File, OpenOptions};
use std::path::Path;
use std::time::SystemTime;

use hikkoshi_account::{Pages, State};

/// The file of the recording, where one is stored.
#[derive(Debug, Default)]
pub(super) struct StoredFile {
    file: Option<File>,
    /// The pages of the last state.
    pages: Option<Pages>,
}

impl StoredFile {
    /// The recording was stored in `path`.
    pub(super) fn open(&mut self, path: &Path) {
        self.file = OpenOptions::new().write(true).open(path).ok();
    }

    /// The present state. If pages were sent or have arrived since the last one, the file's time is
    /// set to now. While there are no links, the recording says since when.
    pub(super) fn note(&mut self, state: &State) {
        let moved = self.pages.replace(state.pages) != Some(state.pages);
        let has_links = state
            .outages
            .last()
            .is_none_or(|outage| outage.to_ms.is_some());
        if moved
            && has_links
            && let Some(file) = &self.file
        {
            // Without it the next engine knows when the recording was stored.
            let _ = file.set_modified(SystemTime::now());
        }
    }
}
