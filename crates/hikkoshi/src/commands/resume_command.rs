//! The commands that resume a migration or change one that runs, for messages.

use std::error::Error;
use std::path::Path;

use crate::args::RecoveryOptions;
use crate::commands::shell_words;
use crate::journal::{self, JournalEntry};
use crate::output::exit::{Exit, ExitStatus};
use crate::output::reason::{Holder, Reason};

/// What can be done if the other side never comes back.
pub(super) const GIVE_UP_HINT: &str = "(If the other side is permanently lost, add --give-up to the \
                                command below: it explains the consequences first.)";

/// The command that resumes the migration in `journal`. All that it needs is stored there.
pub(super) fn resume_command<E: JournalEntry>(journal: &Path) -> String {
    format!("hikkoshi {} --resume={}", E::COMMAND, quoted(journal))
}

/// The command that changes the limits of this guest's migration; `folder` is what --journal was.
pub(super) fn set_command(guest: &str, folder: Option<&Path>) -> String {
    let guest = shell_words::quoted(guest);
    let folder = folder.map_or_else(String::new, |folder| {
        format!(" --journal {}", quoted(&journal::absolute(folder)))
    });
    format!("hikkoshi set {}{folder}", guest.display())
}

/// A migration that cannot be resumed now.
pub(super) fn cannot_resume<E: JournalEntry>(
    reason: Reason,
    error: &dyn Error,
    journal: &Path,
) -> Exit {
    let again = resume_command::<E>(journal);
    let next = format!(
        "nothing was changed, and the journal is unchanged. When the cause is removed: {again}"
    );
    Exit::caused(ExitStatus::Unfinished, reason, error)
        .with(next)
        .resumed_by(again)
}

/// An option, a file or an address that cannot be used to resume the migration in `journal`, which
/// stays unfinished.
pub(super) fn not_resumed<E: JournalEntry>(journal: &Path) -> impl Fn(Exit) -> Exit + use<E> {
    let again = resume_command::<E>(journal);
    move |exit| {
        exit.while_unfinished()
            .also("Nothing was changed: the migration is not finished, and can still be resumed")
            .resumed_by(&again)
    }
}

/// What has failed before a journal was looked for: with `--resume` there may be one, and the
/// service manager tries again.
pub(crate) fn before_search(recovery: &RecoveryOptions) -> impl Fn(Exit) -> Exit + use<> {
    let resumes = recovery.resume.is_some();
    move |exit| {
        if !resumes {
            return exit;
        }
        exit.while_unfinished()
            .held_by(Holder::Unknown)
            .also("Nothing was changed, and no journal was looked for")
    }
}

/// A path as a shell takes it, for messages.
pub(super) fn quoted(path: &Path) -> String {
    shell_words::quoted(path).display().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// There may be several migrations on the host.
    #[test]
    fn a_migration_is_changed_by_the_name_of_its_guest_and_the_folder_of_its_journal() {
        assert_eq!(set_command("web", None), "hikkoshi set web");
        let folder = Some(Path::new("/run/my journals"));
        assert_eq!(
            set_command("db 2", folder),
            "hikkoshi set 'db 2' --journal '/run/my journals'"
        );
    }
}
