//! Lets libvirt create a domain, up to the point where QEMU waits for its stream.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hikkoshi_linux::{CancelFlag, Process};
use hikkoshi_qemu::{MachineOwner, PipedMachine, StreamPipe};
use hikkoshi_wire::Domain as DomainOffer;

use super::restore::Restore;
use super::{
    Descriptions, IncomingError, START_TIMEOUT, image, leftover, persistent, pipe_error, snapshots,
    tpm,
};
use crate::process;

/// How often to look for QEMU's process.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Starts to create the domain.
pub(super) fn start(
    uri: &str,
    offer: &DomainOffer,
    descriptions: &Descriptions,
    running: bool,
    folder: &Path,
    cancel: &CancelFlag,
) -> Result<PipedMachine, IncomingError> {
    let run_folder = process::run_folder(uri)?;
    leftover::end(uri, offer, folder, &run_folder)?;
    tpm::check(&descriptions.here, &offer.name, &offer.uuid)?;
    // Its own name: whatever else has the domain's pipe keeps it.
    let path = leftover::new_path(folder, &offer.uuid);
    let persistent = descriptions.persistent.as_deref();
    persistent::keep(folder, &offer.uuid, persistent, offer.autostart)
        .map_err(|source| pipe_error(folder, source))?;
    snapshots::keep(folder, &offer.uuid, &descriptions.snapshots)
        .map_err(|source| pipe_error(folder, source))?;
    let owner = Restore::start(uri, offer, &path, &descriptions.here, running)?;
    let mut starting = Starting {
        owner,
        name: &offer.name,
        deadline: Instant::now() + START_TIMEOUT,
        cancel,
    };
    let head = image::head(&descriptions.offered, running);
    // Dropping the pipe ends the stream, and with it the domain.
    let started = starting.open(&path, &head).and_then(|pipe| {
        let process = starting.process(&run_folder, &offer.uuid, &pipe)?;
        Ok((pipe, process))
    });
    match started {
        Ok((pipe, process)) => Ok(PipedMachine {
            process: Arc::new(process),
            pipe,
            owner: Box::new(starting.owner),
        }),
        Err(error) => {
            starting.owner.forget();
            Err(error)
        }
    }
}

/// A domain that libvirt is starting.
struct Starting<'a> {
    owner: Restore,
    name: &'a str,
    deadline: Instant,
    cancel: &'a CancelFlag,
}

impl Starting<'_> {
    /// Opens the pipe when libvirt reads from it, and writes what is for libvirt.
    fn open(&mut self, path: &Path, head: &[u8]) -> Result<StreamPipe, IncomingError> {
        let stopped = |stopped| match stopped {
            Stopped::Pipe(source) => pipe_error(path, source),
            Stopped::Other(error) => error,
        };
        let mut check = || self.check().map_err(Stopped::Other);
        let mut pipe = StreamPipe::open(path, &mut check).map_err(stopped)?;
        pipe.write(head, &mut check).map_err(stopped)?;
        Ok(pipe)
    }

    /// Waits for QEMU's process: that of the domain which has the pipe open. Another one, of an
    /// earlier domain that is being ended, must not be touched.
    fn process(
        &mut self,
        run_folder: &Path,
        uuid: &str,
        pipe: &StreamPipe,
    ) -> Result<Process, IncomingError> {
        loop {
            self.check()?;
            if let Ok(process) = process::find(run_folder, self.name, uuid)
                && pipe.is_open_in(&process).unwrap_or(false)
            {
                return Ok(process);
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    }

    /// Whether it makes sense to wait any longer.
    fn check(&mut self) -> Result<(), IncomingError> {
        let name = self.name.to_owned();
        if let Some(what) = self.owner.failure() {
            return Err(IncomingError::Refused { name, what });
        }
        if self.cancel.is_cancelled() {
            return Err(IncomingError::Cancelled { name });
        }
        if Instant::now() > self.deadline {
            return Err(IncomingError::TimedOut { name });
        }
        Ok(())
    }
}

/// Why waiting for libvirt has ended.
enum Stopped {
    Pipe(io::Error),
    Other(IncomingError),
}

impl From<io::Error> for Stopped {
    fn from(error: io::Error) -> Self {
        Self::Pipe(error)
    }
}
