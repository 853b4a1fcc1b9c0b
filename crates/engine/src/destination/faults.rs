//! The fault thread: reads userfaults, sends page requests. Nothing else runs
//! on this path.

use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::thread::{self, JoinHandle};

use hikkoshi_faults::{EventBuffer, Ready, Stop};
use hikkoshi_wire::Frame;

use super::error::DestinationFailure;
use super::installer::{Installer, Wanted};
use super::session::Event;
use crate::link::LinkWriter;

/// Faults read with one system call.
const BATCH: usize = 64;

/// Starts the thread. It ends when `stop` is stopped, or with an event when
/// something fails.
pub(super) fn start(
    installer: Arc<Installer>,
    mut requests: LinkWriter,
    stop: Stop,
    events: SyncSender<Event>,
) -> Result<JoinHandle<()>, DestinationFailure> {
    thread::Builder::new()
        .name("dst-faults".into())
        .spawn(move || {
            if let Err(failure) = run(&installer, &mut requests, &stop) {
                // Nobody listens any more once the migration is over.
                let _ = events.send(Event::Failed(failure));
            }
        })
        .map_err(DestinationFailure::Thread)
}

fn run(
    installer: &Installer,
    requests: &mut LinkWriter,
    stop: &Stop,
) -> Result<(), DestinationFailure> {
    let userfault = installer.userfault();
    let mut buffer = EventBuffer::with_capacity(BATCH);
    loop {
        match userfault.wait(stop, None)? {
            Ready::Stopped => return Ok(()),
            Ready::ProcessGone => return Err(DestinationFailure::ProcessGone),
            Ready::TimedOut | Ready::Also => continue,
            Ready::Events => {}
        }
        userfault.read(&mut buffer)?;
        while let Some(event) = buffer.take() {
            let hikkoshi_faults::Event::Fault(fault) = event else {
                // No other events were asked for.
                tracing::warn!(?event, "an event of the userfaultfd that was not asked for");
                continue;
            };
            let wanted = installer
                .faulted(fault.addr)
                .map_err(|e| DestinationFailure::Install(e.into()))?;
            if let Wanted::Ask(range) = wanted {
                requests
                    .frame(Frame::Request { range })
                    .map_err(DestinationFailure::link("asking for a page"))?;
            }
        }
    }
}
