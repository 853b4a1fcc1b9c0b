//! A migration that has metrics of its own.

use hikkoshi_account::State;
use hikkoshi_status::Recording;

use super::text;
use crate::follow::Known;

/// A migration on one side.
#[derive(Debug)]
pub(super) struct ShownMigration<'a> {
    pub(super) known: &'a Known,
    pub(super) recording: &'a Recording,
    pub(super) state: Option<&'a State>,
}

impl ShownMigration<'_> {
    pub(super) fn id(&self) -> String {
        text::bounded(&self.recording.migration.id)
    }

    pub(super) fn side(&self) -> &'static str {
        self.recording.migration.side.name()
    }
}
