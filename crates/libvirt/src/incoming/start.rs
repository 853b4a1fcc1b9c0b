//! Lets libvirt create a domain, up to the point where QEMU waits for its stream.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hikkoshi_linux::{CancelFlag, Process};
use hikkoshi_qemu::{MachineOwner, PipedMachine, StreamPipe};
use hikkoshi_wire::Domain as DomainOffer;

use super::descriptions::Descriptions;
use super::error::{IncomingError, START_TIMEOUT, pipe_error};
use super::restore::Restore;
use super::{image, leftover, persistent, snapshots, tpm};
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
    let lock = leftover::lock(folder, &offer.uuid).map_err(|source| pipe_error(folder, source))?;
    let Some(_lock) = lock else {
        return Err(IncomingError::Refused {
            name: offer.name.clone(),
            what: "another hikkoshi is creating it".to_owned(),
        });
    };
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
    match starting.machine(&path, &head, &run_folder, &offer.uuid) {
        Ok((process, pipe)) => Ok(PipedMachine {
            process,
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
    /// Writes what is for libvirt, and waits for QEMU's process, and until it has the pipe: another
    /// process, of an earlier domain that is being ended, must not be touched.
    ///
    /// libvirt opens the pipe once (9.0), or first for itself and then again for QEMU (from 11.3
    /// on), and reads its part from the beginning each time. So each time it gets another pipe. It
    /// cannot have opened the next one before it has read what this one has for it.
    fn machine(
        &mut self,
        path: &Path,
        head: &[u8],
        run_folder: &Path,
        uuid: &str,
    ) -> Result<(Arc<Process>, StreamPipe), IncomingError> {
        let failed = |source| pipe_error(path, source);
        let aside = leftover::aside(path);
        let mut current: Option<StreamPipe> = None;
        loop {
            if let Some(mut next) = StreamPipe::open(path).map_err(failed)? {
                // Its file is in the way.
                drop(current.take());
                next.replace(&aside).map_err(failed)?;
                match next.write(head, &mut || self.check().map_err(Stopped::Other)) {
                    Ok(()) => current = Some(next),
                    // libvirt has closed it: it says why, or opens the next one.
                    Err(Stopped::Pipe(error)) if error.kind() == io::ErrorKind::BrokenPipe => {}
                    Err(Stopped::Pipe(error)) => return Err(failed(error)),
                    Err(Stopped::Other(error)) => return Err(error),
                }
            }
            if let Ok(process) = process::find(run_folder, self.name, uuid).map(Arc::new)
                && let Some(mut pipe) =
                    current.take_if(|pipe| pipe.reaches(&process).unwrap_or_default())
            {
                pipe.put_back(path).map_err(failed)?;
                return Ok((process, pipe));
            }
            drop(current.take_if(|pipe| pipe.is_abandoned()));
            self.check()?;
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
