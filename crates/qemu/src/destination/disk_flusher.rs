//! Flushes the destination's disks now and then while they are copied.
//!
//! The last step of a copy, which the paused guest waits for, is a flush of the destination's
//! image. It writes what the host keeps in memory, and what QEMU does (the tables of a qcow2
//! image). So that this is little, the disks are flushed every second before. QEMU has no command
//! for that; so this is one more client of its NBD server, over which the disks are copied.

use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use error_reporter::Report;
use thiserror::Error;

use crate::disks::nbd::{FlushClient, FlushError};

/// The time between two flushes.
const INTERVAL: Duration = Duration::from_secs(1);

/// An image could not be flushed: what was written to it is not there.
#[derive(Debug, Error)]
#[error("copying the disk {disk}")]
pub(crate) struct DiskNotFlushed {
    disk: String,
    #[source]
    why: FlushError,
}

/// A disk to flush: what it is called in messages, the name of its export, and a new connection to
/// the server.
pub(super) type Served = (String, String, UnixStream);

/// The thread that flushes. Ended when it is dropped.
#[derive(Debug)]
pub(super) struct DiskFlusher {
    failure: Arc<Mutex<Option<DiskNotFlushed>>>,
    /// To end a flush in progress.
    sockets: Vec<UnixStream>,
    /// Dropping it ends the thread's waits.
    waits: Option<SyncSender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl DiskFlusher {
    /// Starts to flush these disks.
    pub(super) fn start(disks: Vec<Served>) -> std::io::Result<Self> {
        let sockets = disks.iter().map(|(_, _, socket)| socket.try_clone());
        let sockets = sockets.collect::<std::io::Result<_>>()?;
        let failure = Arc::<Mutex<_>>::default();
        let reported = Arc::clone(&failure);
        let (waits, waiting) = sync_channel(0);
        let thread = thread::Builder::new()
            .name("dst-disk-flush".into())
            .spawn(move || {
                let wait = || waiting.recv_timeout(INTERVAL) == Err(RecvTimeoutError::Timeout);
                let Err(failure) = flush_all(disks, wait) else {
                    return;
                };
                // Otherwise it was ended, or QEMU has ended, which is reported elsewhere.
                if matches!(failure.why, FlushError::Io(_)) {
                    tracing::debug!(failure = %Report::new(&failure), "a disk is not flushed any more");
                } else {
                    *reported.lock().unwrap_or_else(PoisonError::into_inner) = Some(failure);
                }
            })?;
        Ok(Self {
            failure,
            sockets,
            waits: Some(waits),
            thread: Some(thread),
        })
    }

    /// Why a disk could not be flushed; once.
    pub(super) fn take_failure(&self) -> Option<DiskNotFlushed> {
        let mut failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        failure.take()
    }
}

impl DiskFlusher {
    /// Ends the thread, and a flush in progress. Returns why a disk could not be flushed before.
    pub(super) fn end(mut self) -> Option<DiskNotFlushed> {
        self.join();
        self.take_failure()
    }

    fn join(&mut self) {
        self.waits = None;
        for socket in &self.sockets {
            let _ = socket.shutdown(Shutdown::Both);
        }
        if let Some(thread) = self.thread.take() {
            // A panic was reported by the panic hook.
            let _ = thread.join();
        }
    }
}

impl Drop for DiskFlusher {
    fn drop(&mut self) {
        self.join();
    }
}

/// Flushes all disks as long as `wait` returns true.
fn flush_all(disks: Vec<Served>, wait: impl Fn() -> bool) -> Result<(), DiskNotFlushed> {
    let open = |(disk, export, socket): Served| match FlushClient::open(socket, &export) {
        Ok(client) => Ok((disk, client)),
        Err(why) => Err(DiskNotFlushed { disk, why }),
    };
    let clients = disks.into_iter().map(open);
    let mut clients: Vec<_> = clients.collect::<Result<_, _>>()?;
    while wait() {
        for (disk, client) in &mut clients {
            client.flush().map_err(|why| DiskNotFlushed {
                disk: disk.clone(),
                why,
            })?;
        }
        tracing::debug!("the disks are flushed");
    }
    Ok(())
}
