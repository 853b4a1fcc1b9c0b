//! Which users can have written a file, or can enter a folder.

use std::fmt;
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;

/// What other users than its owner may do with a file or a folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Others {
    /// They may read it, and enter it, but not write to it.
    MayRead,
    /// They have no right to it at all.
    HaveNoRights,
}

impl Others {
    /// The bits of the mode that must not be set.
    const fn refused(self) -> u32 {
        match self {
            Self::MayRead => 0o022,
            Self::HaveNoRights => 0o077,
        }
    }
}

/// A file or a folder that other users could harm this process with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub struct UnsafeRights {
    /// Its owner.
    pub owner: u32,
    /// Its permissions.
    pub mode: u32,
    /// This process's user.
    pub user: u32,
    /// What others may do.
    pub others: Others,
}

impl fmt::Display for UnsafeRights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            owner, mode, user, ..
        } = self;
        if is_foreign(*owner, *user) {
            return write!(
                f,
                "it belongs to user {owner}, and hikkoshi runs as user {user}: what belongs to \
                 other users is not used"
            );
        }
        match self.others {
            Others::MayRead => write!(
                f,
                "other users may write to it (mode {mode:o}), so it is not used: check its \
                 content, and run chmod go-w"
            ),
            Others::HaveNoRights => write!(
                f,
                "other users have rights to it (mode {mode:o}), so it is not used: run chmod \
                 go-rwx"
            ),
        }
    }
}

/// Whether it belongs to a user whom this process does not trust.
fn is_foreign(owner: u32, user: u32) -> bool {
    owner != user && owner != 0
}

/// Checks that a file or a folder belongs to this process's user or to root, and that others have
/// no more rights to it than these.
///
/// # Errors
/// When that is not so.
pub fn check_rights(metadata: &Metadata, others: Others) -> Result<(), UnsafeRights> {
    let found = UnsafeRights {
        owner: metadata.uid(),
        mode: metadata.mode() & 0o7777,
        user: rustix::process::geteuid().as_raw(),
        others,
    };
    match is_foreign(found.owner, found.user) || found.mode & others.refused() != 0 {
        true => Err(found),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn others_have_no_more_rights_than_allowed() {
        let folder = tempfile::tempdir().unwrap();
        let check = |mode, others| {
            std::fs::set_permissions(folder.path(), Permissions::from_mode(mode)).unwrap();
            check_rights(&std::fs::metadata(folder.path()).unwrap(), others)
        };
        for (mode, may_read, no_rights) in [
            (0o700, true, true),
            (0o750, true, false),
            (0o701, true, false),
            (0o720, false, false),
            (0o702, false, false),
            (0o1777, false, false),
        ] {
            assert_eq!(check(mode, Others::MayRead).is_ok(), may_read, "{mode:o}");
            let checked = check(mode, Others::HaveNoRights);
            assert_eq!(checked.is_ok(), no_rights, "{mode:o}");
        }
        let said = check(0o1777, Others::MayRead).unwrap_err().to_string();
        assert!(
            said.contains("(mode 1777)") && said.contains("go-w"),
            "{said}"
        );
        let said = check(0o755, Others::HaveNoRights).unwrap_err().to_string();
        assert!(
            said.contains("(mode 755)") && said.contains("go-rwx"),
            "{said}"
        );
    }

    #[test]
    fn what_belongs_to_another_user_is_refused() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let file = tempfile::NamedTempFile::new().unwrap();
        std::os::unix::fs::chown(file.path(), Some(4242), None).unwrap();
        let metadata = std::fs::metadata(file.path()).unwrap();
        let said = check_rights(&metadata, Others::MayRead).unwrap_err();
        assert!(said.to_string().contains("user 4242"), "{said}");
    }
}
