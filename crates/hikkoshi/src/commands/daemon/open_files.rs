//! How many files a daemon may have open: some for each guest.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::output::exit::{Exit, ExitStatus};
use crate::output::reason::Reason;

/// Descriptors that do not depend on the number of guests: connections of peers that have not sent
/// their first message (two for each), of those that wait, and of requests, and the daemon's own.
const OWN: usize = 512;

/// Descriptors for a guest: its process, and while it is started a pipe or a connection.
const FOR_EACH_GUEST: usize = 2;

/// The limit as it was when the daemon was started. Its receivers get it again: they start QEMUs,
/// and programs may not be prepared for more.
#[derive(Debug, Clone, Copy)]
pub(super) struct OpenFiles {
    before: Option<u64>,
}

impl OpenFiles {
    /// Raises this process's limit as far as it may be.
    ///
    /// # Errors
    /// When that is too low for so many guests.
    pub(super) fn raise(max_guests: usize) -> Result<Self, Exit> {
        let limit = getrlimit(Resource::Nofile);
        check(limit.maximum, max_guests)
            .map_err(|why| Exit::new(ExitStatus::Usage, Reason::Usage, why))?;
        let raised = Rlimit {
            current: limit.maximum,
            maximum: limit.maximum,
        };
        setrlimit(Resource::Nofile, raised).map_err(|error| {
            let what = format!("raising the limit of open files (RLIMIT_NOFILE): {error}");
            Exit::new(ExitStatus::Usage, Reason::System, what)
        })?;
        Ok(Self {
            before: limit.current,
        })
    }

    /// A limit that was not raised.
    #[cfg(test)]
    pub(super) fn unchanged() -> Self {
        Self { before: None }
    }

    /// The argument by which a receiver gets the limit again.
    pub(super) fn argument(self) -> Option<String> {
        self.before.map(|limit| format!("--open-files={limit}"))
    }
}

/// Sets the limit of this process, which its daemon has raised.
///
/// # Errors
/// As `setrlimit(2)`.
pub(super) fn restore(limit: u64) -> std::io::Result<()> {
    let before = getrlimit(Resource::Nofile);
    let limit = Rlimit {
        current: Some(limit),
        maximum: before.maximum,
    };
    Ok(setrlimit(Resource::Nofile, limit)?)
}

/// Whether so many guests fit into this limit.
fn check(limit: Option<u64>, max_guests: usize) -> Result<(), String> {
    let needed = OWN + FOR_EACH_GUEST * max_guests;
    let limit = limit.and_then(|limit| usize::try_from(limit).ok());
    match limit {
        Some(limit) if limit < needed => {
            let fit = limit.saturating_sub(OWN) / FOR_EACH_GUEST;
            Err(format!(
                "--max-guests {max_guests} needs {needed} open files, and this process may have \
                 {limit}: raise that limit (ulimit -Hn, or LimitNOFILE= of the service), or use \
                 --max-guests {fit}"
            ))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guests_that_do_not_fit_are_refused_with_the_numbers() {
        assert_eq!(check(None, 65_535), Ok(()));
        assert_eq!(check(Some(640), 64), Ok(()));
        let why = check(Some(1000), 400).unwrap_err();
        for part in ["needs 1312", "may have 1000", "--max-guests 244"] {
            assert!(why.contains(part), "{why}");
        }
        assert!(check(Some(100), 1).unwrap_err().ends_with("--max-guests 0"));
    }
}
