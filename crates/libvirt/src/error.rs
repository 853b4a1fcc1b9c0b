//! The errors of domains.

use std::path::PathBuf;
use std::time::Duration;

use hikkoshi_qemu::ProcessError;
use hikkoshi_qemu::qmp::ConnectError;
use thiserror::Error;

/// A libvirt domain cannot be used.
#[derive(Debug, Error)]
pub enum DomainError {
    /// This program was built without libvirt.
    #[error(
        "this hikkoshi was built without libvirt: build it with `--features libvirt`, or use --qmp \
         with a monitor socket that libvirt does not use"
    )]
    NotBuilt,
    /// The daemon runs on another host.
    #[error(
        "{uri} is on another host: run hikkoshi on the host where the domain runs, because it \
         needs the guest's memory"
    )]
    Remote {
        /// The daemon.
        uri: String,
    },
    /// The daemon does not manage QEMU guests.
    #[error("{uri} does not name a libvirt daemon for QEMU (such as qemu:///system)")]
    NotQemu {
        /// The daemon.
        uri: String,
    },
    /// The daemon is a user's own.
    #[error(
        "{uri} is a user's own daemon, which cannot receive a domain: it cannot read the pipe from \
         which root lets it restore the domain, and a user may not suspend the seccomp filter of \
         its QEMU, which needs CAP_SYS_ADMIN (receive it with the system's daemon, qemu:///system)"
    )]
    Session {
        /// The daemon.
        uri: String,
    },
    /// The daemon was not reached.
    #[error(
        "connecting to libvirt at {uri}: {what} (is libvirtd or virtqemud running, and may this user \
         use it?)"
    )]
    Connect {
        /// The daemon.
        uri: String,
        /// libvirt's message.
        what: String,
    },
    /// The daemon hangs.
    #[error(
        "libvirt's daemon at {uri} has not answered for {} s (it was asked {asked}): it hangs, or its \
         host has no time for it. If it does not recover, restart it, for example by 'systemctl \
         restart libvirtd': domains that run are not affected",
        after.as_secs()
    )]
    NoAnswer {
        /// The daemon.
        uri: String,
        /// What it was asked.
        asked: String,
        /// How long it was waited for.
        after: Duration,
    },
    /// libvirt's events cannot be received.
    #[error("receiving libvirt's events: {what}")]
    Events {
        /// libvirt's message.
        what: String,
    },
    /// The domain was not found, or libvirt says nothing about it.
    #[error("looking for the domain {name} at {uri}: {what}")]
    Lookup {
        /// The domain.
        name: String,
        /// The daemon.
        uri: String,
        /// libvirt's message.
        what: String,
    },
    /// The domain that was found before does not exist any more.
    #[error("{uri} does not know the domain {name} any more: it has ended, and was not persistent")]
    Gone {
        /// The domain.
        name: String,
        /// The daemon.
        uri: String,
    },
    /// The domain is shut off.
    #[error("the domain {name} at {uri} does not run: there is nothing to move")]
    NotRunning {
        /// The domain.
        name: String,
        /// The daemon.
        uri: String,
    },
    /// libvirt works on it.
    #[error(
        "libvirt has a job under way with the domain {name} (a save, a dump, a backup or a migration): \
         wait until it has ended, or end it with 'virsh domjobabort'"
    )]
    Busy {
        /// The domain.
        name: String,
    },
    /// Its snapshots are too many to be described to the destination.
    #[error(
        "the domain {name} has snapshots ({snapshots}) whose descriptions have {bytes} bytes: too much \
         for one move (delete some: 'virsh snapshot-delete', with --metadata to keep their content)"
    )]
    Snapshots {
        /// The domain.
        name: String,
        /// How many.
        snapshots: usize,
        /// The length of their descriptions.
        bytes: usize,
    },
    /// They would be lost with its configuration.
    #[error(
        "the domain {name} has checkpoints ({checkpoints}), which do not move, and which libvirt would \
         forget by --undefine-source: leave that option out, or delete them before ('virsh \
         checkpoint-delete')"
    )]
    Checkpoints {
        /// The domain.
        name: String,
        /// How many.
        checkpoints: usize,
    },
    /// A part of one is neither in an image nor in the description.
    #[error(
        "the snapshot {snapshot} of the domain {name} has the guest's memory in {file}, which does not \
         move, so the snapshot could not be reverted to at the destination, and --drop-snapshots, which \
         is about the content of images, does not leave it out (delete the snapshot, or have libvirt \
         forget it, which keeps the file: 'virsh snapshot-delete {name} {snapshot} --metadata')"
    )]
    SnapshotMemory {
        /// The domain.
        name: String,
        /// The snapshot.
        snapshot: String,
        /// Where its memory is.
        file: String,
    },
    /// It is not as it was when the move began.
    #[error("the domain {name} was changed during the move: {what} (start the move again)")]
    Changed {
        /// The domain.
        name: String,
        /// What was changed.
        what: String,
    },
    /// The guest, which may run at the destination, was resumed here.
    #[error(
        "the domain {name} was resumed at the source after its guest was handed over, by another client \
         of libvirt ('virsh resume'): two copies of the guest have run. {}. The copy here may have \
         written to the guest's memory, so no more of its pages are sent",
        paused_again(not_paused.as_deref())
    )]
    Resumed {
        /// The domain.
        name: String,
        /// Why it was not paused again.
        not_paused: Option<String>,
    },
    /// The guest, which may run at the destination, was reset here.
    #[error(
        "the domain {name} was reset at the source after its guest was handed over, by another client \
         of libvirt ('virsh reset'): its devices and its firmware may have written to the guest's \
         memory, so no more of its pages are sent"
    )]
    Reset {
        /// The domain.
        name: String,
    },
    /// libvirt did not answer a question, or do something.
    #[error("asking libvirt at {uri} about the domain {name} ({asked}): {what}")]
    Asked {
        /// The domain.
        name: String,
        /// The daemon.
        uri: String,
        /// What was asked.
        asked: String,
        /// libvirt's message.
        what: String,
    },
    /// Its QEMU was not ended.
    #[error(
        "ending QEMU (process {pid}) of the domain {name}, whose guest has moved (run hikkoshi as root, \
         or with CAP_KILL; by hand: 'kill -KILL {pid}', because QEMU may write to the guest's images \
         at another signal)"
    )]
    NotEnded {
        /// The domain.
        name: String,
        /// QEMU's process.
        pid: u32,
        /// Why.
        source: std::io::Error,
    },
    /// The domain has no process: it does not run.
    #[error("finding the QEMU process of the domain {name}: {path} does not exist (does it run?)", path = path.display())]
    NoProcess {
        /// The domain.
        name: String,
        /// libvirt's file with the process ID.
        path: PathBuf,
    },
    /// QEMU's process was not found.
    #[error("finding the QEMU process of the domain {name}: {what}")]
    Process {
        /// The domain.
        name: String,
        /// What is wrong.
        what: String,
    },
    /// QEMU's process cannot be used.
    #[error(transparent)]
    Qemu(#[from] ProcessError),
    /// No session on the monitor was opened.
    #[error(transparent)]
    Monitor(#[from] ConnectError),
}

#[cfg(feature = "libvirt")]
impl DomainError {
    /// This error after several attempts, which have taken so long in total.
    pub(crate) fn after(mut self, waited: Duration) -> Self {
        if let Self::NoAnswer { after, .. } = &mut self {
            *after = waited;
        }
        self
    }
}

fn paused_again(error: Option<&str>) -> String {
    match error {
        None => "It is paused again".to_owned(),
        Some(error) => format!(
            "IT STILL RUNS: pausing it again failed ({error}; pause it at once, by 'virsh suspend')"
        ),
    }
}
