//! The errors of a destination.

use std::io;

use hikkoshi_userfault::{CloseRemoteError, RemoteUserfaultError};
use thiserror::Error;

use super::load_timeout::LOAD_TIMEOUT;
use super::piped::PipedError;
use crate::device_tree::OWN_SWTPM;
use crate::qmp::reconnect::MonitorError;
use crate::qmp::{ConnectError, QmpError};

/// QEMU was not prepared for the incoming guest.
#[derive(Debug, Error)]
pub(crate) enum PrepareError {
    /// A QMP command failed.
    #[error("preparing QEMU for the incoming guest")]
    Qmp(#[from] QmpError),
    /// Memory was plugged or unplugged since we attached.
    #[error(
        "preparing QEMU for the incoming guest: its memory has changed since 'hikkoshi receive' was \
         started ({difference}); start 'hikkoshi receive' again"
    )]
    MemoryChanged {
        /// What has changed.
        difference: String,
    },
    /// QEMU's state has changed since we attached.
    #[error(
        "preparing QEMU for the incoming guest: its state is {state}, no longer inmigrate; restart \
         that QEMU"
    )]
    State {
        /// QEMU's name for the state.
        state: String,
    },
}

/// Page faults on missing pages cannot be handled.
#[derive(Debug, Error)]
pub enum UserfaultError {
    /// Creating the userfaultfd failed.
    #[error(transparent)]
    Take(#[from] RemoteUserfaultError),
    /// The copy in QEMU of a userfaultfd for filling memory could not be closed.
    #[error(transparent)]
    Close(#[from] CloseRemoteError),
    /// The userfaultfd of the interrupted migration is gone.
    #[error(
        "taking over the userfaultfd of the interrupted migration in QEMU (process {pid}{}): it has \
         been closed. From then on, pages that had not arrived read as zeros, so the memory of \
         this QEMU cannot be trusted. If the guest has never run here, end this QEMU and run \
         'hikkoshi receive --resume': the guest then resumes at its source",
        descriptor(*number)
    )]
    Lost {
        /// QEMU's process.
        pid: u32,
        /// The descriptor's number in it.
        number: Option<i32>,
    },
    /// The RAM file is on a tmpfs with huge pages.
    #[error(
        "post-copy drops and fills single pages of a RAM file, but the kernel puts huge pages into \
         the tmpfs of the guest's memory \"{id}\" ({setting}): mount it with huge=never, or move \
         the guest with --mode precopy"
    )]
    HugePages {
        /// The backend.
        id: String,
        /// The setting that causes it.
        setting: String,
    },
    /// The memory is a file on another file system.
    #[error(
        "post-copy needs memory at the destination that faults where it is empty, but the guest's \
         memory \"{id}\" is a file that is neither on tmpfs nor on hugetlbfs (use other memory there, \
         such as -m alone or memory-backend-ram, or move the guest with --mode precopy \
         --when-stalled continue)"
    )]
    NeverFaults {
        /// The RAM block.
        id: String,
    },
    /// The file system of the memory is not known.
    #[error("looking for the file system of the guest's memory \"{id}\"")]
    FileSystem {
        /// The RAM block.
        id: String,
        /// The error of the system call.
        source: io::Error,
    },
    /// Reading the mount options of the tmpfs failed.
    #[error("reading the mount options of the tmpfs of the guest's memory \"{id}\"")]
    MountOptions {
        /// The backend.
        id: String,
        /// The error of the system call.
        source: io::Error,
    },
}

/// The device state was not loaded. The guest does not run here.
#[derive(Debug, Error)]
pub(crate) enum LoadError {
    /// A QMP command failed.
    #[error("loading the device state")]
    Qmp(#[from] QmpError),
    /// It did not reach QEMU through the pipe.
    #[error("loading the device state")]
    Piped(#[from] PipedError),
    /// The socket or the thread for it failed.
    #[error("loading the device state: starting to write it to QEMU")]
    Socket(#[from] io::Error),
    /// QEMU refused it.
    #[error("{}", refused_by(error, written, *tpm))]
    Refused {
        /// Whether the guest has a TPM.
        tpm: bool,
        /// QEMU's error message, if there is one. Without one QEMU has exited.
        error: Option<String>,
        /// What it wrote to its standard error, if that is a file. The peer is not sent it.
        written: Option<String>,
    },
    /// QEMU was not prepared for it.
    #[error("loading the device state: QEMU has not been prepared for it")]
    NotPrepared,
    /// It took too long.
    #[error(
        "loading the device state: QEMU did not load it within {} s",
        LOAD_TIMEOUT.as_secs()
    )]
    TimedOut,
    /// The guest started to run too early.
    #[error(
        "loading the device state: the guest started to run too early, because another program \
         resumed it (QMP command 'cont'). It has been paused again"
    )]
    Ran,
}

/// The guest was not resumed.
#[derive(Debug, Error)]
pub(crate) enum RunError {
    /// A QMP command failed.
    #[error("resuming the guest at the destination")]
    Qmp(#[from] QmpError),
    /// The connection to the monitor failed.
    #[error("resuming the guest at the destination")]
    Connect(#[from] ConnectError),
    /// The machine's owner did not run the guest.
    #[error("resuming the guest at the destination (QEMU's process {pid})")]
    Piped {
        /// QEMU's process.
        pid: u32,
        /// Why.
        source: PipedError,
    },
    /// QEMU refused, and the guest has never run there.
    #[error(
        "resuming the guest at the destination. Its QEMU (process {pid}) refused and was ended: it \
         may have locked some of the guest's images, and the source needs all of them"
    )]
    Refused {
        /// QEMU's process.
        pid: u32,
        /// QEMU's answer.
        source: QmpError,
    },
    /// QEMU has refused, and may still hold images.
    #[error(
        "resuming the guest at the destination. Its QEMU (process {pid}) refused, may have locked \
         some of the guest's images, which the source needs, and could not be ended ({kill}): \
         end that process by hand, then resume the migration"
    )]
    NotEnded {
        /// QEMU's process.
        pid: u32,
        /// QEMU's answer.
        source: QmpError,
        /// Why the process was not ended.
        kill: io::Error,
    },
    /// The command succeeded, but the guest does not run.
    #[error(
        "resuming the guest at the destination: QEMU accepted the command, but the guest's state is \
         {state}; resume it by hand (QMP command 'cont'), here and not at the source"
    )]
    Stopped {
        /// QEMU's name for the state.
        state: String,
    },
    /// There is no guest.
    #[error("resuming the guest at the destination: its device state has not been loaded")]
    NotLoaded,
}

/// QEMU's process could not be ended.
#[derive(Debug, Error)]
#[error(
    "ending QEMU (process {pid}), which must not run the guest (this needs its user, or CAP_KILL; \
     by hand: 'kill -KILL {pid}')"
)]
pub(crate) struct KillError {
    pub(super) pid: u32,
    pub(super) source: io::Error,
}

/// Something that was changed in QEMU was not restored. The rest was.
#[derive(Debug, Error)]
pub(crate) enum ReleaseDestinationError {
    /// Closing the userfaultfd inside QEMU failed.
    #[error(transparent)]
    Userfault(#[from] CloseRemoteError),
    /// Restoring the settings failed.
    #[error("restoring QEMU's migration settings")]
    Settings(#[from] MonitorError),
    /// The disks are still served.
    #[error("ending the NBD server of QEMU (end this QEMU before its images are used elsewhere)")]
    Disks(#[source] MonitorError),
}

/// The descriptor's number, behind a comma, if it is known.
fn descriptor(number: Option<i32>) -> String {
    number.map_or_else(String::new, |number| format!(", descriptor {number}"))
}

/// Parts of QEMU's messages about a device state of another machine (`migration/savevm.c`,
/// `migration/ram.c`, `migration/vmstate.c`, `hw/pci/pci.c` and `hw/virtio/virtio.c`).
const OTHER_MACHINE: [&str; 10] = [
    "savevm section",
    "Unknown section",
    "ismatch",
    "does not match",
    "Unknown ramblock",
    "Configuration section",
    "Machine type received is",
    "Missing section footer",
    "Bad config data",
    "Features 0x",
];

impl LoadError {
    /// The error without QEMU's reasons, which may name files of this host. `None`: it is without.
    pub(super) fn without_reasons(&self) -> Option<String> {
        let why = ": the messages of 'hikkoshi receive' say why";
        let (tpm, error, written) = match self {
            Self::Refused {
                tpm,
                error,
                written,
            } => (tpm, error, written),
            Self::Piped(error) => {
                let bare = error.without_written();
                return bare.map(|error| format!("{error}{why}"));
            }
            _ => return None,
        };
        let error = error.as_deref();
        let bare = error.map(|error| without_reason(error).unwrap_or_default());
        if written.is_none() && bare == error {
            return None;
        }
        Some(refused(bare, [error, written.as_deref()], *tpm, why))
    }
}

/// The error that QEMU reports without the reason, which QEMU 11.1 adds: `load of migration failed:
/// Invalid argument` of `load of migration failed: Invalid argument: Unknown section …`. (An older
/// QEMU writes the reason.) `None` for an error of another form.
fn without_reason(error: &str) -> Option<&str> {
    let begin = "load of migration failed: ";
    let rest = error.strip_prefix(begin)?;
    let end = rest.find(": ").unwrap_or(rest.len());
    error.get(..begin.len() + end)
}

/// That QEMU refused a device state, and why.
fn refused_by(error: &Option<String>, written: &Option<String>, tpm: bool) -> String {
    let error = error.as_deref();
    let why = match written {
        Some(written) => format!(". It wrote: {written}"),
        None if error.is_some_and(|error| without_reason(error) != Some(error)) => String::new(),
        None => ": its log or standard error says why".to_owned(),
    };
    refused(error, [error, written.as_deref()], tpm, &why)
}

/// That QEMU refused a device state with this error, which may be empty, `why`, and what to do if
/// that is known from these texts.
fn refused(error: Option<&str>, texts: [Option<&str>; 2], tpm: bool, why: &str) -> String {
    let error_text = match error {
        Some("") => String::new(),
        Some(error) => format!(" ({error})"),
        None => " and exited".to_owned(),
    };
    let mut text = format!("loading the device state: QEMU refused it{error_text}{why}");
    let mut texts = texts.into_iter().flatten();
    if texts.any(|text| OTHER_MACHINE.iter().any(|part| text.contains(part))) {
        text.push_str(" (start QEMU at the destination with the same options as at the source)");
    }
    if tpm {
        text.push_str(&format!(" (the guest needs {OWN_SWTPM})"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_device_state_is_explained_by_what_qemu_wrote() {
        let text = |error: Option<&str>, written: Option<&str>| {
            let refused = LoadError::Refused {
                tpm: false,
                error: error.map(str::to_owned),
                written: written.map(str::to_owned),
            };
            refused.to_string()
        };
        let failed = Some("load of migration failed: Invalid argument");
        let unknown = Some("Unknown savevm section or instance 'x' 0. Make sure that");
        assert_eq!(
            text(failed, unknown),
            "loading the device state: QEMU refused it (load of migration failed: Invalid argument). \
             It wrote: Unknown savevm section or instance 'x' 0. Make sure that (start QEMU at the \
             destination with the same options as at the source)"
        );
        for written in [
            "Machine type received is 'pc-i440fx-7.2' and local is 'pc-q35-7.2'",
            "get_pci_config_device: Bad config data: i=0x10 read: a1 device: 1 cmask: ff",
            "Features 0x130afffa7 unsupported. Allowed features: 0x79bfffff7",
            "Missing section footer for 0000:00:03.0/virtio-net",
        ] {
            let text = text(failed, Some(written));
            assert!(text.ends_with("as at the source)"), "{text}");
        }
        // Other options would not help.
        let locked = Some("tpm-emulator: Setting the stateblob (type 1) failed: locked");
        assert_eq!(
            text(None, locked),
            "loading the device state: QEMU refused it and exited. It wrote: tpm-emulator: Setting \
             the stateblob (type 1) failed: locked"
        );
        assert_eq!(
            text(failed, None),
            "loading the device state: QEMU refused it (load of migration failed: Invalid \
             argument): its log or standard error says why"
        );
    }

    #[test]
    fn the_reason_may_be_in_the_error_that_qemu_reports() {
        let reason = "Unknown section or instance '0000:00:02.0/virtio-rng' 0";
        let refused = LoadError::Refused {
            tpm: false,
            error: Some(format!(
                "load of migration failed: Invalid argument: {reason}"
            )),
            written: None,
        };
        let begin = "loading the device state: QEMU refused it (load of migration failed: Invalid \
                     argument";
        let advice = "(start QEMU at the destination with the same options as at the source)";
        assert_eq!(refused.to_string(), format!("{begin}: {reason}) {advice}"));
        let why = "the messages of 'hikkoshi receive' say why";
        assert_eq!(
            refused.without_reasons().unwrap(),
            format!("{begin}): {why} {advice}")
        );
        // Of an unknown form, the peer is sent nothing.
        let refused = LoadError::Refused {
            tpm: false,
            error: Some("Could not open '/secret/disk': Permission denied".to_owned()),
            written: None,
        };
        assert!(
            refused.to_string().ends_with("Permission denied)"),
            "{refused}"
        );
        assert_eq!(
            refused.without_reasons().unwrap(),
            format!("loading the device state: QEMU refused it: {why}")
        );
    }

    #[test]
    fn the_peers_text_is_without_what_qemu_wrote() {
        let refused = |written: Option<&str>| LoadError::Refused {
            tpm: false,
            error: Some("load of migration failed: Invalid argument".to_owned()),
            written: written.map(str::to_owned),
        };
        assert_eq!(
            refused(Some("/secret/disk does not match"))
                .without_reasons()
                .unwrap(),
            "loading the device state: QEMU refused it (load of migration failed: Invalid \
             argument): the messages of 'hikkoshi receive' say why (start QEMU at the destination \
             with the same options as at the source)"
        );
        assert_eq!(refused(None).without_reasons(), None);
        let part = "the device state";
        let piped = |written: Option<&str>| {
            let error = PipedError::Ended { part };
            LoadError::from(error.with(written.map(str::to_owned)))
        };
        let with = piped(Some("/secret/disk does not match"));
        let whole = error_reporter::Report::new(&with).to_string();
        assert!(
            whole.ends_with("may say more). QEMU wrote: /secret/disk does not match"),
            "{whole}"
        );
        let without = with.without_reasons().unwrap();
        assert!(
            without.ends_with("the messages of 'hikkoshi receive' say why"),
            "{without}"
        );
        assert!(!without.contains("secret"), "{without}");
        assert_eq!(piped(None).without_reasons(), None);
        // libvirt's error may have it.
        let said = PipedError::Owner {
            what: "libvirt: QEMU has ended: 'x' 0. Make sure".to_owned(),
        };
        let said = LoadError::from(said.with(Some("'x' 0. Make sure".to_owned())));
        let bare = said.without_reasons().unwrap();
        assert!(
            bare.starts_with("libvirt could not restore the domain: "),
            "{bare}"
        );
    }

    #[test]
    fn a_state_that_was_refused_names_what_a_tpm_needs() {
        let refused = |tpm| {
            let (error, written) = (None, None);
            let refused = LoadError::Refused {
                tpm,
                error,
                written,
            };
            refused.to_string()
        };
        assert!(!refused(false).contains(OWN_SWTPM));
        assert!(refused(true).ends_with(&format!(" (the guest needs {OWN_SWTPM})")));
    }
}
