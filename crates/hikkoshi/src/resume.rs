//! Which migration `--resume` means.

use std::path::{Path, PathBuf};

use hikkoshi_engine::link::Address;
use hikkoshi_qemu::{LookError, Place};

use crate::args::Common;
use crate::exit::{Exit, Status};
use crate::journal::{self, Entry, Page};
use crate::reason::Reason;

/// The QMP socket.
pub fn qmp(common: &Common) -> Result<&Path, Exit> {
    common.qmp.as_deref().ok_or_else(|| {
        // Clap asks for it.
        Exit::new(Status::Usage, Reason::Usage, "--qmp PATH is missing")
    })
}

/// An address that is written in a journal.
pub fn address(written: &str) -> Result<Address, Exit> {
    written.parse().map_err(|error| {
        let what = format!("reading the journal: '{written}': {error}");
        Exit::new(Status::Usage, Reason::Journal, what)
    })
}

/// Takes hold of the journal in `file`, or the one that `--qmp` and
/// `--journal` lead to.
pub fn find<E: Entry>(common: &Common, file: Option<&Path>) -> Result<(Page, E), Exit> {
    let cannot = |error: &dyn std::fmt::Display| {
        Exit::new(
            Status::Usage,
            Reason::Journal,
            format!("reading the journal: {error}"),
        )
    };
    let path = match file {
        Some(path) => path.to_owned(),
        None => search::<E>(common)?,
    };
    if !path.exists() {
        return Err(Exit::new(
            Status::Usage,
            Reason::NoJournal,
            format!(
                "there is no journal at {}: that migration is over, or had not begun to hand its \
                 guest over",
                path.display()
            ),
        ));
    }
    let page = Page::lock(&path).map_err(|error| cannot(&error))?;
    match page.read().map_err(|error| cannot(&error))? {
        Some(entry) => Ok((page, entry)),
        None => Err(cannot(&"it has just been removed: the migration is over")),
    }
}

fn search<E: Entry>(common: &Common) -> Result<PathBuf, Exit> {
    let folder = journal::folder(common.journal.as_deref());
    let found = journal::find::<E>(&folder, common.qmp.as_deref()).map_err(|error| {
        Exit::new(
            Status::Usage,
            Reason::Journal,
            format!("looking for a migration to go on with: {error}"),
        )
    })?;
    // Those whose QEMU has ended are only to be looked at, unless there are no
    // others.
    let lives = |(_, entry): &(PathBuf, E)| may_live(entry.place()).unwrap_or(true);
    let (living, dead): (Vec<_>, Vec<_>) = found.into_iter().partition(lives);
    let found = if living.is_empty() { dead } else { living };
    match &found[..] {
        [] => Err(Exit::new(
            Status::Usage,
            Reason::NoJournal,
            format!(
                "there is no {} in {} to go on with: it is over, or had not begun to hand its guest \
                 over",
                E::SIDE,
                folder.display()
            ),
        )),
        // The newest of one socket is meant; of several, one must be named.
        [(path, _), ..] if found.len() == 1 || common.qmp.is_some() => Ok(path.clone()),
        _ => {
            let all = found.iter().map(|(path, entry)| {
                format!(
                    "--resume={} ({})",
                    quoted(path),
                    entry.place().qmp.display()
                )
            });
            let all = all.collect::<Vec<_>>().join(", ");
            let what = format!("there are several to go on with: {all}");
            Err(Exit::new(Status::Usage, Reason::JournalAmbiguous, what).with("name one of them"))
        }
    }
}

/// Whether what a journal tells of may be a QEMU that is there still: one that
/// was found here, on this boot of this machine.
pub fn may_live(place: &Place) -> Result<bool, LookError> {
    match place.process() {
        Ok(process) => Ok(process.is_some()),
        Err(LookError::AnotherBoot { .. }) => Ok(false),
        Err(error) => Err(error),
    }
}

/// What there is besides going on, for whoever has nobody to go on with.
pub const GIVE_UP: &str = "(If the other side is lost for good, --give-up with the command below \
                           says what that means.)";

/// It cannot be gone on with now.
pub fn cannot<E: Entry>(reason: Reason, error: &dyn std::fmt::Display, journal: &Path) -> Exit {
    let again = command::<E>(journal);
    let next =
        format!("nothing was changed, and the journal is as it was. Once that is mended: {again}");
    Exit::new(Status::Paused, reason, error)
        .with(next)
        .resumed_by(again)
}

/// The command that goes on with what `journal` tells of: what else it takes is
/// written there.
pub fn command<E: Entry>(journal: &Path) -> String {
    format!("hikkoshi {} --resume={}", E::COMMAND, quoted(journal))
}

/// A path as a shell takes it.
pub fn quoted(path: &Path) -> String {
    let text = path.display().to_string();
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+:@".contains(c);
    if text.chars().all(plain) {
        return text;
    }
    format!("'{}'", text.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_quoted_where_a_shell_wants_it() {
        for (path, expected) in [
            ("/run/hikkoshi/a.json", "/run/hikkoshi/a.json"),
            ("/a b", "'/a b'"),
            ("/it's", "'/it'\\''s'"),
        ] {
            assert_eq!(quoted(Path::new(path)), expected);
        }
    }
}
