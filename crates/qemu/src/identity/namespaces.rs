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
pub struct NamespaceIdentity {
    /// The boot's name: of this machine, and of this run of it.
    #[serde(rename = "boot")]
    pub boot_id: String,
    /// The PID namespace's number: process numbers are its.
    #[serde(rename = "pids")]
    pub pid_namespace: u64,
    /// The time namespace's number, where the kernel has those: start times are
    /// its.
    #[serde(rename = "times")]
    pub time_namespace: Option<u64>,
}

/// Whether QEMU is still there could not be found out.
#[derive(Debug, Error)]
pub enum FindProcessError {
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

impl NamespaceIdentity {
    /// Ours.
    pub(crate) fn current() -> io::Result<Self> {
        let number = |kind| std::fs::metadata(format!("/proc/self/ns/{kind}")).map(|m| m.ino());
        Ok(Self {
            boot_id: std::fs::read_to_string(BOOT)?.trim_end().to_owned(),
            pid_namespace: number("pid")?,
            time_namespace: match number("time") {
                Ok(number) => Some(number),
                // Built without them.
                Err(error) if error.kind() == io::ErrorKind::NotFound => None,
                Err(error) => return Err(error),
            },
        })
    }

    /// Makes sure that `pid` and its start time mean the same here.
    pub(crate) fn check(&self, pid: u32) -> Result<(), FindProcessError> {
        let here = Self::current().map_err(|source| FindProcessError::Here { pid, source })?;
        if self.boot_id != here.boot_id {
            return Err(FindProcessError::AnotherBoot {
                pid,
                recorded: self.boot_id.clone(),
                here: here.boot_id,
            });
        }
        let zero = |times: Option<u64>| times.unwrap_or_default();
        for (kind, recorded, here) in [
            ("PID", self.pid_namespace, here.pid_namespace),
            ("time", zero(self.time_namespace), zero(here.time_namespace)),
        ] {
            if recorded != here {
                return Err(FindProcessError::AnotherNamespace {
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
        let here = NamespaceIdentity::current().unwrap();
        here.check(7).unwrap();
        let other = NamespaceIdentity {
            boot_id: "another".into(),
            ..here.clone()
        };
        let said = other.check(7).unwrap_err().to_string();
        assert!(
            said.contains("process 7") && said.contains("on another machine"),
            "{said}"
        );
        let other = NamespaceIdentity {
            pid_namespace: here.pid_namespace + 1,
            ..here.clone()
        };
        let said = other.check(7).unwrap_err().to_string();
        assert!(said.contains("another PID namespace"), "{said}");
        let other = NamespaceIdentity {
            time_namespace: Some(1),
            ..here
        };
        let said = other.check(7).unwrap_err().to_string();
        assert!(said.contains("another time namespace"), "{said}");
    }
}
