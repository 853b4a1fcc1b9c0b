//! Guests of a Pacemaker cluster. The agent marks those that are active on this node, by a file in
//! the run folder, and no other command moves them: Pacemaker would not know, and start them again.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use crate::journal::absolute;
use crate::machines;
use crate::output::exit::{Exit, ExitStatus};
use crate::output::reason::Reason;

/// The agent's folder in the run folder.
const FOLDER: &str = "cluster";

/// What is to be done with such a guest.
const INSTEAD: &str = "Move it by 'crm resource move' or a standby of the node; with \
                       --allow-managed it is moved all the same";

/// A file of the agent about the guest, whose folder exists.
///
/// # Errors
/// It cannot be made.
pub(super) fn file(run: &Path, name: &str, end: &str) -> io::Result<PathBuf> {
    let folder = run.join(FOLDER);
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(&folder)?;
    Ok(folder.join(format!("{name}.{end}")))
}

/// Marks a guest as active on this node, or not any more.
///
/// # Errors
/// The file cannot be made or removed.
pub(super) fn mark(run: &Path, name: &str, is_active: bool) -> io::Result<()> {
    let mark = file(run, name, "active")?;
    match is_active {
        true => fs::write(mark, ""),
        false => match fs::remove_file(mark) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        },
    }
}

/// Why a guest that is marked is not moved: that of a QMP socket, or else the domain.
pub(super) fn obstacle(run: &Path, qmp: Option<&Path>, domain: &str) -> Option<String> {
    let run = absolute(run);
    let name = match qmp {
        None => domain,
        Some(path) => {
            let name = path.file_stem().and_then(|name| name.to_str());
            name.filter(|name| machines::socket(&run, name) == absolute(path))?
        }
    };
    let mark = run.join(FOLDER).join(format!("{name}.active"));
    mark.try_exists().unwrap_or(true).then(|| {
        format!(
            "Pacemaker manages the guest {name} ({}): it would not know of the move, and start \
             the guest again. {INSTEAD}",
            mark.display()
        )
    })
}

/// Refuses to move such a guest.
///
/// # Errors
/// It is marked, and nothing was tried.
pub(super) fn refuse(run: &Path, qmp: Option<&Path>, domain: &str) -> Result<(), Exit> {
    match obstacle(run, qmp, domain) {
        None => Ok(()),
        Some(what) => {
            let exit = Exit::new(ExitStatus::Usage, Reason::Unsupported, what);
            Err(exit.with("nothing was tried"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guest_that_is_active_in_a_cluster_is_not_moved() {
        let run = tempfile::tempdir().unwrap();
        let run = run.path();
        let web = machines::socket(run, "web");
        let is_refused = || [Some(&*web), None].map(|qmp| refuse(run, qmp, "web").is_err());
        assert_eq!(is_refused(), [false, false]);
        mark(run, "web", true).unwrap();
        let refused = refuse(run, Some(&web), "").unwrap_err();
        assert_eq!(refused.status(), ExitStatus::Usage);
        assert!(refused.text().contains("--allow-managed"), "{refused:?}");
        assert_eq!(is_refused(), [true, true]);
        for other in [
            &*machines::socket(run, "db"),
            Path::new("/elsewhere/web.qmp"),
        ] {
            refuse(run, Some(other), "").unwrap();
        }
        for _ in 0..2 {
            mark(run, "web", false).unwrap();
            assert_eq!(is_refused(), [false, false]);
        }
    }
}
