//! The destination's side of a migration.
//!
//! One thread runs [`receive`]: it accepts a source, drops stale pages and goes through the
//! switchover (`switchover/`). From *ready* on it performs what the handover machine decides
//! (`handover_driver/`). Beside it run:
//!
//! * One receiver for each link (`receiver.rs`). Before the switchover it writes pages into guest
//!   memory (`hikkoshi_memory::RamWriter`), afterwards it installs them (`postcopy/installer/`).
//! * The fault threads (`postcopy/fault_thread/`), which request what the guest touches
//!   (`postcopy/request_sender.rs`) and record when (`request_times.rs`) and for which thread
//!   (`fault_counters.rs`).
//!
//! Huge pages are assembled from 4 KiB pages and requested a bounded number at a time; huge pages
//! of tmpfs are rebuilt at the end (`postcopy/huge/`).

mod error;
pub(crate) mod frames;
pub(crate) mod handover_driver;
mod install_error;
mod last_message;
mod options;
pub(crate) mod postcopy;
pub(crate) mod receiver;
pub(crate) mod session;
pub(crate) mod switchover;

use std::fmt;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::thread;

use hikkoshi_wire::{MAX_LINKS, Role};

pub use error::{DestinationFailure, ReceiveError};
pub use handover_driver::give_up::give_up_receive;
pub use install_error::{InstallError, TooManyPartial};
pub use options::{DestinationOptions, MAX_FAULT_THREADS};

use crate::destination::switchover::offer::NoGuest;
use crate::guest::DestinationGuest;
use crate::report::{Account, Observer};
use hikkoshi_handover::Outcome;
use hikkoshi_handover::{DestinationRecord, Journal};
use hikkoshi_link::{Incoming, Listener, TICK};
use hikkoshi_linux::Cancel;

/// How the caller controls and observes the destination.
#[derive(Clone)]
pub struct ReceiveWatch {
    /// Requests to stop.
    pub cancel: Cancel,
    /// Receives progress and notices.
    pub observer: Arc<dyn Observer>,
    /// Where the record of the handover is kept.
    pub journal: Arc<dyn Journal<DestinationRecord>>,
}

impl fmt::Debug for ReceiveWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReceiveWatch").finish_non_exhaustive()
    }
}

/// Accepted links that may wait in the queue: all links of one migration (background, urgent) can
/// arrive before the first is handled, and the control link of the next migration.
const LINKS: usize = MAX_LINKS as usize + 2;

/// Waits at `listener` for a source and takes its guest into `guest`.
///
/// A source whose guest does not fit is refused, and the wait continues. Returns when the guest
/// runs here and every page is here.
///
/// # Errors
/// [`ReceiveError`] says what went wrong and where the guest is now, as far as this side knows.
pub fn receive(
    guest: &mut dyn DestinationGuest,
    listener: &Listener,
    options: &DestinationOptions,
    watch: &ReceiveWatch,
) -> Result<Account, ReceiveError> {
    listener.set_migration(None);
    listening(listener, |door| accept(guest, door, options, watch))
}

/// Resumes a migration that another engine has begun and recorded, when its source connects at
/// `listener`.
///
/// If the guest was handed over, it runs meanwhile; its faults are answered when the source has
/// connected.
///
/// # Errors
/// As [`receive`].
pub fn resume_receive(
    guest: &mut dyn DestinationGuest,
    record: DestinationRecord,
    listener: &Listener,
    options: &DestinationOptions,
    watch: &ReceiveWatch,
) -> Result<Account, ReceiveError> {
    listener.set_migration(Some(record.id));
    listening(listener, |door| {
        switchover::incoming::resume(guest, record, door.incoming, options, watch)
    })
}

/// Accepts connections while `lead` runs.
fn listening(
    listener: &Listener,
    lead: impl FnOnce(&mut Acceptor<'_>) -> Result<Account, ReceiveError>,
) -> Result<Account, ReceiveError> {
    let stop = Cancel::new();
    let (sender, incoming) = sync_channel(LINKS);
    thread::scope(|scope| {
        // Also when this thread panics: the scope waits for the other thread.
        let _stop = CancelOnDrop(&stop);
        let spawned = thread::Builder::new()
            .name("dst-accept".into())
            // The sender moves into the thread, so that its end is noticed.
            .spawn_scoped(scope, {
                let stop = &stop;
                move || listener.serve(&sender, stop)
            });
        match spawned {
            Ok(_) => {
                let mut door = Acceptor {
                    listener,
                    incoming: &incoming,
                };
                lead(&mut door)
            }
            Err(error) => Err(at_source(DestinationFailure::Thread(error))),
        }
    })
}

/// Sets the flag when it is dropped.
struct CancelOnDrop<'a>(&'a Cancel);

impl Drop for CancelOnDrop<'_> {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

/// Where connections are accepted.
struct Acceptor<'a> {
    listener: &'a Listener,
    incoming: &'a Receiver<Incoming>,
}

/// The listener has failed.
fn listener_failed() -> DestinationFailure {
    DestinationFailure::Listen(std::io::Error::other("the listening socket failed"))
}

/// Waits for sources until a guest was received, or its migration failed.
fn accept(
    guest: &mut dyn DestinationGuest,
    door: &mut Acceptor<'_>,
    options: &DestinationOptions,
    watch: &ReceiveWatch,
) -> Result<Account, ReceiveError> {
    loop {
        if watch.cancel.is_cancelled() {
            return Err(at_source(DestinationFailure::Cancelled));
        }
        if let Some(over) = door.listener.wait_ended() {
            return Err(at_source(DestinationFailure::NoSource(over)));
        }
        let link = match door.incoming.recv_timeout(TICK) {
            Ok(link) => link,
            Err(RecvTimeoutError::Timeout) => continue,
            Err(RecvTimeoutError::Disconnected) => return Err(at_source(listener_failed())),
        };
        if link.role != Role::Control {
            continue; // Left over from a source that was refused.
        }
        door.listener.accept_only_links_of(&link);
        let peer = link.peer.clone();
        let over = || door.listener.set_migration(None);
        match switchover::offer::hear(guest, link, options, watch, over) {
            Ok(offered) => {
                watch
                    .observer
                    .notice(&format!("a guest arrives from {peer}"));
                return switchover::incoming::run(guest, offered, door.incoming, options, watch);
            }
            Err(NoGuest::Compared(obstacles)) => {
                watch.observer.notice(&match obstacles {
                    0 => format!("{peer} asked about its guest, which can be moved here"),
                    1 => format!("{peer} asked about its guest, which cannot be moved here: there is 1 obstacle"),
                    n => format!("{peer} asked about its guest, which cannot be moved here: there are {n} obstacles"),
                });
                door.listener.set_migration(None);
            }
            Err(NoGuest::Refused(why)) => {
                watch
                    .observer
                    .notice(&format!("refused a guest from {peer}: {why}"));
                // Also when the source was not notified.
                door.listener.set_migration(None);
            }
        }
    }
}

fn at_source(cause: DestinationFailure) -> ReceiveError {
    ReceiveError {
        cause,
        outcome: Outcome::AtSource,
    }
}
