//! The boot and the namespaces in which a process was seen. A process number and a
//! start time name the same process only in the same boot of the same machine, and
//! in the same PID and time namespaces.

use std::io;
use std::os::unix::fs::MetadataExt;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::process::ProcessError;

/// Holds the boot's identifier, see `random(4)`.
const BOOT: &str = "/proc/sys/kernel/random/boot_id";

/// The boot and the namespaces of a process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NamespaceIdentity {
    /// The boot's identifier: it differs between machines and between boots.
    pub boot_id: String,
    /// The PID namespace's number. Process numbers belong to it.
    pub pid_namespace: u64,
    /// The time namespace's number, if the kernel has time namespaces. Start
    /// times belong to it.
    pub time_namespace: Option<u64>,
}

/// It is not known whether QEMU's process still exists.
#[derive(Debug, Error)]
pub enum FindProcessError {
    /// The process could not be examined.
    #[error("looking for QEMU's process")]
    Process(#[from] ProcessError),
    /// Our own boot and namespaces could not be read.
    #[error("looking for QEMU's process {pid}: reading our own boot and namespaces")]
    Here {
        /// Its number.
        pid: u32,
        /// The error of the system call.
        source: io::Error,
    },
    /// The process was on another machine, or ran before a reboot.
    #[error(
        "looking for QEMU's process {pid}: it ran on another machine, or before this machine \
         rebooted (recorded boot {recorded}, current boot {here}). If it ran on another machine, \
         run hikkoshi there. If this machine rebooted, that QEMU and its memory are lost"
    )]
    AnotherBoot {
        /// Its number.
        pid: u32,
        /// The recorded boot.
        recorded: String,
        /// The current boot.
        here: String,
    },
    /// The process number belongs to another namespace.
    #[error(
        "looking for QEMU's process {pid}: that number belongs to another {kind} namespace \
         ({recorded}; ours is {here}), for example a container's: run hikkoshi in the namespace \
         where it ran before"
    )]
    AnotherNamespace {
        /// Its number.
        pid: u32,
        /// `PID` or `time`.
        kind: &'static str,
        /// The recorded namespace's number.
        recorded: u64,
        /// Our namespace's number.
        here: u64,
    },
}

impl NamespaceIdentity {
    /// Our own.
    pub(crate) fn current() -> io::Result<Self> {
        let number = |kind| std::fs::metadata(format!("/proc/self/ns/{kind}")).map(|m| m.ino());
        Ok(Self {
            boot_id: std::fs::read_to_string(BOOT)?.trim_end().to_owned(),
            pid_namespace: number("pid")?,
            time_namespace: match number("time") {
                Ok(number) => Some(number),
                // A kernel without time namespaces.
                Err(error) if error.kind() == io::ErrorKind::NotFound => None,
                Err(error) => return Err(error),
            },
        })
    }

    /// Checks that `pid` and its start time have the same meaning here.
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
    fn a_process_of_another_namespace_does_not_count_as_ended() {
        let here = NamespaceIdentity::current().unwrap();
        here.check(7).unwrap();
        let other = NamespaceIdentity {
            boot_id: "another".into(),
            ..here.clone()
        };
        let message = other.check(7).unwrap_err().to_string();
        assert!(
            message.contains("process 7") && message.contains("on another machine"),
            "{message}"
        );
        let other = NamespaceIdentity {
            pid_namespace: here.pid_namespace + 1,
            ..here.clone()
        };
        let message = other.check(7).unwrap_err().to_string();
        assert!(message.contains("another PID namespace"), "{message}");
        let other = NamespaceIdentity {
            time_namespace: Some(1),
            ..here
        };
        let message = other.check(7).unwrap_err().to_string();
        assert!(message.contains("another time namespace"), "{message}");
    }
}
