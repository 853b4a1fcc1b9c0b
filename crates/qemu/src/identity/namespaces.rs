//! From where a process was seen: a number and a start time mean the same process
//! only to who looks from the same boot of the same machine, and from the same
//! namespaces.

use std::io;
use std::os::unix::fs::MetadataExt;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::attach::process::ProcessError;

/// Names the boot, see `random(4)`.
const BOOT: &str = "/proc/sys/kernel/random/boot_id";

/// Where somebody looks from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct View {
    /// The boot's name: of this machine, and of this run of it.
    pub boot: String,
    /// The PID namespace's number: process numbers are its.
    pub pids: u64,
    /// The time namespace's number, where the kernel has those: start times are
    /// its.
    pub times: Option<u64>,
}

/// Whether QEMU is still there could not be found out.
#[derive(Debug, Error)]
pub enum LookError {
    /// Its process could not be looked at.
    #[error("looking for QEMU's process: {0}")]
    Process(#[from] ProcessError),
    /// We do not know where we are.
    #[error("looking for QEMU's process {pid}: finding out from where: {source}")]
    Here {
        /// Its number.
        pid: u32,
        /// What the system said.
        source: io::Error,
    },
    /// Another machine, or another run of it.
    #[error(
        "looking for QEMU's process {pid}: it was seen on another machine, or before this one was \
         restarted (boot {recorded}; this is {here}). If on another machine, go on there. If this \
         one was restarted, that QEMU has ended, and its memory is gone with it"
    )]
    AnotherBoot {
        /// Its number.
        pid: u32,
        /// The boot's name.
        recorded: String,
        /// This one's.
        here: String,
    },
    /// Another namespace.
    #[error(
        "looking for QEMU's process {pid}: that number is from another {kind} namespace \
         ({recorded}; this is {here}), such as a container's: run hikkoshi where it ran before"
    )]
    AnotherNamespace {
        /// Its number.
        pid: u32,
        /// `PID` or `time`.
        kind: &'static str,
        /// Its namespace's number.
        recorded: u64,
        /// Ours.
        here: u64,
    },
}

impl View {
    /// Ours.
    pub(crate) fn here() -> io::Result<Self> {
        let number = |kind| std::fs::metadata(format!("/proc/self/ns/{kind}")).map(|m| m.ino());
        Ok(Self {
            boot: std::fs::read_to_string(BOOT)?.trim_end().to_owned(),
            pids: number("pid")?,
            times: match number("time") {
                Ok(number) => Some(number),
                // Built without them.
                Err(error) if error.kind() == io::ErrorKind::NotFound => None,
                Err(error) => return Err(error),
            },
        })
    }

    /// Makes sure that `pid` and its start time mean the same here.
    pub(crate) fn check(&self, pid: u32) -> Result<(), LookError> {
        let here = Self::here().map_err(|source| LookError::Here { pid, source })?;
        if self.boot != here.boot {
            return Err(LookError::AnotherBoot {
                pid,
                recorded: self.boot.clone(),
                here: here.boot,
            });
        }
        let zero = |times: Option<u64>| times.unwrap_or_default();
        for (kind, recorded, here) in [
            ("PID", self.pids, here.pids),
            ("time", zero(self.times), zero(here.times)),
        ] {
            if recorded != here {
                return Err(LookError::AnotherNamespace {
                    pid,
                    kind,
                    recorded,
                    here,
                });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_of_elsewhere_is_not_taken_for_gone() {
        let here = View::here().unwrap();
        here.check(7).unwrap();
        let other = View {
            boot: "another".into(),
            ..here.clone()
        };
        let said = other.check(7).unwrap_err().to_string();
        assert!(
            said.contains("process 7") && said.contains("on another machine"),
            "{said}"
        );
        let other = View {
            pids: here.pids + 1,
            ..here.clone()
        };
        let said = other.check(7).unwrap_err().to_string();
        assert!(said.contains("another PID namespace"), "{said}");
        let other = View {
            times: Some(1),
            ..here
        };
        let said = other.check(7).unwrap_err().to_string();
        assert!(said.contains("another time namespace"), "{said}");
    }
}
