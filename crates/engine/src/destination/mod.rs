//! The destination's side of a migration.
//!
//! One thread leads ([`receive`]): it accepts a source, drops what is stale
//! and goes through the switchover (`arrival.rs`); from *ready* on the machine in
//! `custody` decides (`keeper.rs`, `stay.rs`). Beside it run
//! one receiver for each link (`receiver.rs`), which write pages into the RAM
//! files (`memory.rs`) before the switch and install them (`installer.rs`) after
//! it, and the fault threads (`faults.rs`), which ask for what the guest touches
//! (`asking.rs`) and note when (`outstanding.rs`) and for whom (`who.rs`).
//!
//! Huge pages are put together from pieces (`staging.rs`, `book.rs`), asked for
//! a bounded number at a time (`turns.rs`); those of tmpfs are rebuilt at the
//! end (`collapse.rs`).

mod error;
pub(crate) mod handover;
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
pub use handover::give_up::give_up_receive;
pub use options::{DestinationOptions, MAX_FAULT_THREADS};
pub use postcopy::huge::slots::TooManyPartial;
pub use postcopy::installer::InstallError;

use crate::guest::DestinationGuest;
use crate::report::{Account, Observer};
use hikkoshi_handover::Outcome;
use hikkoshi_handover::{DestinationRecord, Journal};
use hikkoshi_link::{Incoming, Listener, TICK};
use hikkoshi_linux::Cancel;

/// How the caller controls and observes the destination.
#[derive(Clone)]
pub struct ReceiveWatch {
    /// Asks it to stop.
    pub cancel: Cancel,
    /// Is told how it goes.
    pub observer: Arc<dyn Observer>,
    /// Where it is written down how far it is.
    pub journal: Arc<dyn Journal<DestinationRecord>>,
}

impl fmt::Debug for ReceiveWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReceiveWatch").finish_non_exhaustive()
    }
}

/// Links that may wait to be taken: all of a migration's (background, urgent)
/// may come before the first is looked at, and the control link of the next.
const LINKS: usize = MAX_LINKS as usize + 2;

/// Waits at `listener` for a source and takes its guest into `guest`.
///
/// A source whose guest does not fit is refused, and the wait goes on. Returns
/// when the guest runs here and every page is here.
///
/// # Errors
/// [`ReceiveError`] says what went wrong and where the guest is now, as far as
/// this side can tell.
pub fn receive(
    guest: &mut dyn DestinationGuest,
    listener: &Listener,
    options: &DestinationOptions,
    watch: &ReceiveWatch,
) -> Result<Account, ReceiveError> {
    listener.expect(None);
    listening(listener, |door| accept(guest, door, options, watch))
}

/// Waits at `listener` for the source of a migration that another engine has
/// begun and recorded, and goes on with it.
///
/// The guest runs meanwhile, if it was handed over; faults are answered as soon
/// as the source is there.
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
    listener.expect(Some(record.id));
    listening(listener, |door| {
        switchover::incoming::resume(guest, record, door.incoming, options, watch)
    })
}

/// Listens while `lead` leads.
fn listening(
    listener: &Listener,
    lead: impl FnOnce(&mut Acceptor<'_>) -> Result<Account, ReceiveError>,
) -> Result<Account, ReceiveError> {
    let stop = Cancel::new();
    let (sender, incoming) = sync_channel(LINKS);
    thread::scope(|scope| {
        // Also when this thread panics: the scope waits for the other one.
        let _stop = CancelOnDrop(&stop);
        let spawned = thread::Builder::new()
            .name("dst-accept".into())
            // The sender goes with it: its end is noticed.
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

/// Where connections come in.
struct Acceptor<'a> {
    listener: &'a Listener,
    incoming: &'a Receiver<Incoming>,
}

/// Nobody listens any more.
fn listener_failed() -> DestinationFailure {
    DestinationFailure::Listen(std::io::Error::other("the listening socket failed"))
}

/// Waits for sources until one's guest was taken in, or was lost on the way.
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
        if let Some(over) = door.listener.wait_over() {
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
        door.listener.admit(&link);
        let peer = link.peer.clone();
        let over = || door.listener.expect(None);
        match switchover::offer::hear(guest, link, options, watch, over) {
            Ok(offered) => {
                watch
                    .observer
                    .notice(&format!("a guest arrives from {peer}"));
                return switchover::incoming::run(guest, offered, door.incoming, options, watch);
            }
            Err(why) => {
                watch
                    .observer
                    .notice(&format!("refused a guest from {peer}: {why}"));
                // Also where the source was not told.
                door.listener.expect(None);
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
