//! Copies the guest's disks to the destination.
//!
//! The copies run while the guest does. They end in
//! [`complete_copies`](QemuSource::complete_copies), between the pause and the save of the device
//! state, after which QEMU releases the images. If the move fails, the engine ends their
//! connections, for which QEMU and the guest's writes would wait. Then everything of the copies is
//! removed while the guest is paused (`end_copies.rs`), and the guest continues: its devices have
//! used their own images all the time.

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::{Duration, Instant};

use error_reporter::Report;
use hikkoshi_account::DiskCopy;
use hikkoshi_engine::{CancelFlag, DiskConnection, DiskContent, SourceGuest};
use serde_json::json;

use super::QemuSource;
use crate::disks::copy_error::CopyError;
use crate::disks::copy_error::EndCopiesError;
use crate::disks::end_copies;
use crate::disks::guest_writes::GuestWrites;
use crate::disks::job_speed::JobSpeed;
use crate::disks::mirror;
use crate::disks::nbd::NbdRequests;
use crate::disks::{self, CopiedDisk, DiskSelection, SelectError};
use crate::qmp::reconnect::connected;
use crate::qmp::{COMMAND_TIMEOUT, WATCHED_TIMEOUT};

/// How long a killed QEMU may take to end after its sockets were closed.
const ENDING: Duration = Duration::from_secs(1);

/// The copies of a move.
#[derive(Debug, Default)]
pub(super) struct DiskCopies {
    /// The disks, by number.
    pub(super) disks: Vec<CopiedDisk>,
    /// How many of the jobs were started.
    started: usize,
    /// How many bytes a second the jobs may copy, all together.
    limit: Option<u64>,
    /// What QEMU limits each job that was started to.
    speeds: Vec<JobSpeed>,
    /// What the guest has written to the disks of these jobs.
    writes: GuestWrites,
    /// How far they were when that was last queried.
    progress: Vec<DiskCopy>,
    /// Ends waits for QEMU, which may wait for the destination as long as disks are copied.
    cancel: Option<CancelFlag>,
    /// What was copied, when all have been completed.
    completed: Option<Vec<DiskCopy>>,
}

impl QemuSource {
    /// Finds the guest's disks, so that the destination compares them with its own, and lets the
    /// move copy those that are selected. Without this call disks are neither compared nor copied.
    /// Returns for people why disks are not copied, and what to mind.
    ///
    /// # Errors
    ///
    /// See [`SelectError`]; the guest is unchanged.
    pub fn choose_disks(&mut self, selection: &DiskSelection) -> Result<Vec<String>, SelectError> {
        let mut chosen = disks::choose(connected(&mut self.client)?, selection)?;
        if let Some(domain) = &mut self.domain {
            chosen.drop_snapshots(domain, selection)?;
        }
        chosen.remove_left_marks();
        self.offered_disks = chosen.offer()?;
        self.copies.disks = chosen.copied;
        Ok(chosen.notices)
    }

    fn copied_disk(&self, number: usize) -> Result<&CopiedDisk, CopyError> {
        let disk = self.copies.disks.get(number);
        disk.ok_or(CopyError::NoDisk { number })
    }

    /// Passes QEMU one end of a connection for the disk `number`, and returns the other.
    pub(super) fn connect_copy(&mut self, number: usize) -> Result<DiskConnection, CopyError> {
        let label = self.copied_disk(number)?.label.clone();
        let disk = || label.clone();
        let copies = u16::try_from(number + 1).unwrap_or(u16::MAX);
        if self.undo.copies < copies {
            let before = std::mem::replace(&mut self.undo.copies, copies);
            if let Err(error) = self.undo_recorder.write(&self.undo) {
                self.undo.copies = before;
                return Err(CopyError::Record(error));
            }
        }
        let (ours, theirs) = UnixStream::pair().map_err(|source| CopyError::Socket {
            disk: disk(),
            source,
        })?;
        let client = connected(&mut self.client)?;
        if number == 0 {
            // Descriptors and nodes that a killed engine has left. (Its jobs were ended when we
            // attached.)
            end_copies::end(client, usize::from(copies))?;
        }
        let name = json!({ "fdname": disks::name(number) });
        client
            .execute_with_fd("getfd", name, theirs.as_fd())
            .map_err(|source| CopyError::Qmp {
                disk: disk(),
                source,
            })?;
        Ok(DiskConnection {
            disk: label,
            socket: ours,
            requests: Box::<NbdRequests>::default(),
        })
    }

    /// Has QEMU set up the connection for the disk `number`.
    pub(super) fn open_copy(
        &mut self,
        number: usize,
        cancel: &CancelFlag,
    ) -> Result<(), CopyError> {
        let disk = self.copied_disk(number)?.label.clone();
        let client = connected(&mut self.client)?;
        // From now on any command may wait for the destination, where the watch of its connection
        // ends a wait that is too long.
        client.set_timeout(WATCHED_TIMEOUT);
        self.copies.cancel = Some(cancel.clone());
        client.set_cancel(Some(cancel.clone()));
        let added = mirror::add_target(client, number);
        client.set_cancel(None);
        added.map_err(|source| CopyError::Qmp { disk, source })
    }

    /// Starts the copy of the disk `number`, over its connection, which is open.
    pub(super) fn start_copy(
        &mut self,
        number: usize,
        cancel: &CancelFlag,
    ) -> Result<(), CopyError> {
        if number != self.copies.started {
            return Err(CopyError::NoDisk { number });
        }
        let disk = self.copied_disk(number)?.clone();
        let speed = JobSpeed::of_each(self.copies.limit, self.copies.disks.len());
        let client = connected(&mut self.client)?;
        client.set_cancel(Some(cancel.clone()));
        let started = mirror::start(client, number, &disk, speed)
            .and_then(|()| self.copies.writes.begin(client));
        client.set_cancel(None);
        started.map_err(|source| CopyError::Qmp {
            disk: disk.label,
            source,
        })?;
        self.copies.started = number + 1;
        self.copies.speeds.push(speed);
        Ok(())
    }

    /// Limits the copies, from their next start or [`copy_progress`](Self::copy_progress) on.
    pub(super) fn limit_copies(&mut self, bytes_per_second: Option<u64>) {
        self.copies.limit = bytes_per_second;
    }

    /// About how many bytes the copies send.
    pub(super) fn copied_content(&mut self) -> Result<DiskContent, CopyError> {
        if self.copies.disks.is_empty() {
            return Ok(DiskContent::default());
        }
        let client = connected(&mut self.client)?;
        Ok(disks::allocated(client, &self.copies.disks)?)
    }

    /// How far the copies are.
    pub(super) fn copy_progress(&mut self) -> Result<Vec<DiskCopy>, CopyError> {
        if let Some(completed) = &self.copies.completed {
            return Ok(completed.clone());
        }
        let Some(disks) = self.copies.disks.get(..self.copies.started) else {
            return Ok(Vec::new());
        };
        if disks.is_empty() {
            return Ok(Vec::new());
        }
        let client = connected(&mut self.client)?;
        client.set_cancel(self.copies.cancel.clone());
        let progress = mirror::progress(client, disks, &self.copies.writes);
        let progress = progress.and_then(|progress| {
            let speeds = JobSpeed::of_all(self.copies.limit, &progress);
            mirror::limit(client, &mut self.copies.speeds, &speeds)?;
            Ok(progress)
        });
        client.set_cancel(None);
        let mut progress = progress?;
        // Requests of the guest that are in progress are counted, and then they are not.
        for (now, before) in progress.iter_mut().zip(&self.copies.progress) {
            now.copied_bytes = now.copied_bytes.max(before.copied_bytes);
            now.total_bytes = now.total_bytes.max(now.copied_bytes);
        }
        self.copies.progress.clone_from(&progress);
        Ok(progress)
    }

    /// Whether disks are being copied, or may be.
    pub(super) fn are_disks_copied(&self) -> bool {
        self.undo.copies > 0 && self.copies.completed.is_none()
    }

    /// What ends waits for QEMU early, while disks are copied.
    pub(super) fn copies_cancel(&self) -> Option<CancelFlag> {
        let copies = &self.copies;
        copies.cancel.clone().filter(|_| self.are_disks_copied())
    }

    /// The guest is paused: completes the copies, and lets QEMU save the device state.
    pub(super) fn complete_copies(&mut self, give_up: &CancelFlag) -> Result<(), CopyError> {
        let prepared = self.prepared.take().ok_or(CopyError::NotPaused)?;
        let client = connected(&mut self.client)?;
        client.set_cancel(Some(give_up.clone()));
        let completed = mirror::complete(client, &self.copies.disks);
        client.set_cancel(None);
        client.set_timeout(COMMAND_TIMEOUT);
        completed?;
        let mut copied = std::mem::take(&mut self.copies.progress);
        for disk in &mut copied {
            (disk.copied_bytes, disk.in_sync) = (disk.total_bytes, true);
        }
        self.copies.completed = Some(copied);
        // Whoever undoes the move has nothing of them to end.
        self.undo.copies = 0;
        Ok(self.begin_save(prepared)?)
    }

    /// Removes everything of the copies from QEMU, if there is anything. A guest that runs is
    /// paused meanwhile.
    pub(super) fn remove_copies(&mut self) -> Result<(), EndCopiesError> {
        if (self.undo.copies == 0 && self.copies.started == 0) || self.has_ended() {
            return Ok(());
        }
        if self.copies.completed.is_none() {
            let copies = usize::from(self.undo.copies);
            let ended = self.session().map_err(EndCopiesError::from);
            let ended = ended.and_then(|client| {
                // The connections have ended.
                client.set_timeout(COMMAND_TIMEOUT);
                end_copies::end(client, copies)
            });
            if let Err(error) = ended {
                // The copies have ended with it.
                return if self.ends_now() { Ok(()) } else { Err(error) };
            }
        }
        self.undo.copies = 0;
        self.copies.started = 0;
        self.copies.speeds.clear();
        self.copies.writes = GuestWrites::default();
        self.copies.progress.clear();
        self.record_undone();
        Ok(())
    }

    /// Whether QEMU's process has ended, or ends now: its sockets are closed before.
    fn ends_now(&self) -> bool {
        let since = Instant::now();
        while !self.has_ended() {
            if since.elapsed() >= ENDING {
                return false;
            }
            thread::sleep(Duration::from_millis(5));
        }
        true
    }

    /// Removes the copies after a failure: releasing the guest tries again and reports the error.
    pub(super) fn remove_copies_after_failure(&mut self) {
        if let Err(error) = self.remove_copies() {
            tracing::warn!(
                error = %Report::new(&error),
                "removing the copies of the guest's disks from QEMU"
            );
        }
    }
}
