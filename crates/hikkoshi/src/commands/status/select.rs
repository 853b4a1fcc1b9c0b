//! Which migration a person means.

use std::path::Path;

use hikkoshi_account::Side;
use hikkoshi_status::Migration;

use crate::output::status::SeenMigration;

/// The fewest digits of a number.
const DIGITS: usize = 4;

/// Whether `text` means this migration: its guest, its number or the beginning of it, its process,
/// or the name of its entry.
pub(crate) fn is_meant(seen: &SeenMigration, text: &str) -> bool {
    is_named(&seen.migration, &seen.name, text)
}

/// Whether `text` means a migration whose entry has the name `entry`.
pub(crate) fn is_named(migration: &Migration, entry: &str, text: &str) -> bool {
    let is_number = text.len() >= DIGITS && migration.id.starts_with(text);
    migration.guest == text
        || is_number
        || migration.pid.to_string() == text
        || entry == text
        || is_socket(migration, text)
}

/// Whether `text` is a path to the guest's QMP socket.
fn is_socket(migration: &Migration, text: &str) -> bool {
    let Some(socket) = &migration.qmp else {
        return false;
    };
    let given = Path::new(text).canonicalize().ok();
    socket == text || given.is_some() && Path::new(socket).canonicalize().ok() == given
}

/// The migration that a person means, to change it.
#[derive(Debug, PartialEq)]
pub(crate) enum Choice<'a> {
    /// This one, which runs, at its source.
    Source(&'a SeenMigration),
    /// Only the destination's side is here.
    Destination(&'a SeenMigration),
    /// It has ended.
    Ended(&'a SeenMigration),
    /// Its engine was killed.
    Killed(&'a SeenMigration),
    /// Several sources.
    Several(Vec<&'a SeenMigration>),
    /// None.
    None,
}

/// Chooses among the migrations of this host, the newest first.
pub(crate) fn choose<'a>(all: &'a [SeenMigration], guest: Option<&str>) -> Choice<'a> {
    let meant: Vec<&SeenMigration> = all
        .iter()
        .filter(|seen| guest.is_none_or(|guest| is_meant(seen, guest)))
        .collect();
    let of_side =
        |side| move |seen: &&&SeenMigration| seen.is_running() && seen.migration.side == side;
    let sources: Vec<&SeenMigration> = meant
        .iter()
        .filter(of_side(Side::Source))
        .copied()
        .collect();
    match sources[..] {
        [source] => return Choice::Source(source),
        [] => {}
        _ => return Choice::Several(sources),
    }
    if let Some(seen) = meant.iter().find(of_side(Side::Destination)) {
        return Choice::Destination(seen);
    }
    // Without a name, a migration that has ended is not meant.
    match meant.first().filter(|_| guest.is_some()) {
        Some(seen) if seen.end.is_some() => Choice::Ended(seen),
        Some(seen) => Choice::Killed(seen),
        None => Choice::None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::status::Engine;
    use crate::output::status::examples::seen;
    use hikkoshi_status::End;
    use std::slice::from_ref;

    #[test]
    fn a_migration_is_named_by_what_is_shown_of_it() {
        let one = seen(Side::Source, "web", 4711, true);
        for name in [
            "web",
            "4711",
            "00001267",
            "0000126799aa",
            "source-4711-00001267",
        ] {
            assert!(is_meant(&one, name), "{name}");
        }
        for other in ["", "we", "471", "000", "00001268", "source", "Web"] {
            assert!(!is_meant(&one, other), "{other}");
        }
    }

    #[test]
    fn a_socket_is_named_by_any_path_to_it() {
        let folder = tempfile::tempdir().unwrap();
        let (real, link) = (folder.path().join("qmp"), folder.path().join("link"));
        std::fs::write(&real, "").unwrap();
        std::os::unix::fs::symlink(&real, &link).unwrap();
        let mut one = seen(Side::Source, "web", 1, true);
        one.migration.qmp = Some(real.to_str().unwrap().to_owned());
        for name in ["web", real.to_str().unwrap(), link.to_str().unwrap()] {
            assert!(is_meant(&one, name), "{name}");
        }
        assert!(!is_meant(&one, folder.path().to_str().unwrap()));
    }

    #[test]
    fn a_source_that_runs_is_chosen() {
        let web = seen(Side::Source, "web", 1, true);
        let there = seen(Side::Destination, "web", 2, true);
        let db = seen(Side::Source, "db", 3, true);
        let mut old = seen(Side::Source, "web", 4, false);
        let killed = old.clone();
        old.end = Some(End {
            at_ms: 1,
            exit_status: 1,
            reason: "cancelled".into(),
            message: "cancelled".into(),
            next: None,
            account: None,
        });
        let all = [web.clone(), there.clone(), db.clone(), old.clone()];
        assert_eq!(
            choose(from_ref(&killed), Some("4")),
            Choice::Killed(&killed)
        );
        let mut silent = web.clone();
        silent.engine = Engine::Silent;
        assert_eq!(choose(from_ref(&silent), None), Choice::Source(&silent));
        assert_eq!(choose(&all, Some("web")), Choice::Source(&web));
        assert_eq!(choose(&all, Some("2")), Choice::Destination(&there));
        assert_eq!(choose(&all, Some("4")), Choice::Ended(&old));
        assert_eq!(choose(&all, Some("mail")), Choice::None);
        assert_eq!(choose(&all, None), Choice::Several(vec![&web, &db]));
        assert_eq!(choose(&all[1..], None), Choice::Source(&db));
        assert_eq!(choose(&all[3..], None), Choice::None);
        assert_eq!(choose(&[], Some("web")), Choice::None);
    }
}
