//! The destination's side of a migration.
//!
//! One thread leads ([`receive`]): it accepts a source, drops what is stale
//! and goes through the switchover (`arrival.rs`, `ending.rs`). Beside it run
//! one receiver for each link (`receiver.rs`), which write pages into the RAM
//! files (`memory.rs`) before the switch and install them (`installer.rs`) after
//! it, and the fault threads (`faults.rs`), which ask for what the guest touches
//! (`asking.rs`) and note when (`outstanding.rs`) and for whom (`who.rs`).
//!
//! Huge pages are put together from pieces (`staging.rs`, `book.rs`), asked for
//! a bounded number at a time (`turns.rs`); those of tmpfs are rebuilt at the
//! end (`collapse.rs`).

mod arrival;
mod asking;
mod book;
mod collapse;
mod ending;
mod error;
mod faults;
#[cfg(test)]
#[cfg(not(loom))]
mod giant;
mod installer;
mod memory;
mod offer;
mod options;
mod outstanding;
mod postcopy;
mod receiver;
mod room;
mod session;
mod staging;
mod turns;
mod who;

use std::fmt;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread;

use hikkoshi_wire::{MAX_LINKS, Role};

pub use book::TooManyPartial;
pub use error::{DestinationFailure, ReceiveError};
pub use installer::InstallError;
pub use options::{DestinationOptions, MAX_FAULT_THREADS};

use crate::cancel::Cancel;
use crate::guest::DestinationGuest;
use crate::link::{Incoming, Listener, TICK};
use crate::source::Outcome;
use crate::stats::{Account, Observer};

/// Who watches over the receiving side.
#[derive(Clone)]
pub struct ReceiveWatch {
    /// Asks it to stop.
    pub cancel: Cancel,
    /// Is told how it goes.
    pub observer: Arc<dyn Observer>,
}

impl fmt::Debug for ReceiveWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReceiveWatch").finish_non_exhaustive()
    }
}

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
    let stop = Cancel::new();
    // All links of a migration may come before the first is looked at: the
    // background links, the urgent one, and the control link of the next.
    let (sender, incoming) = sync_channel(usize::from(MAX_LINKS) + 2);
    thread::scope(|scope| {
        // Also when this thread panics: the scope waits for the other one.
        let _stop = CancelOnDrop(&stop);
        let spawned = thread::Builder::new()
            .name("dst-accept".into())
            .spawn_scoped(scope, || listener.serve(&sender, &stop));
        match spawned {
            Ok(acceptor) => {
                let mut door = Door {
                    listener,
                    incoming: &incoming,
                    listener_ended: &|| acceptor.is_finished(),
                };
                accept(guest, &mut door, options, watch)
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
struct Door<'a> {
    listener: &'a Listener,
    incoming: &'a Receiver<Incoming>,
    listener_ended: &'a dyn Fn() -> bool,
}

/// Waits for sources until one's guest was taken in, or was lost on the way.
fn accept(
    guest: &mut dyn DestinationGuest,
    door: &mut Door<'_>,
    options: &DestinationOptions,
    watch: &ReceiveWatch,
) -> Result<Account, ReceiveError> {
    loop {
        if watch.cancel.is_cancelled() {
            return Err(at_source(DestinationFailure::Cancelled));
        }
        if (door.listener_ended)() {
            let error = std::io::Error::other("the listening socket failed");
            return Err(at_source(DestinationFailure::Listen(error)));
        }
        let Ok(link) = door.incoming.recv_timeout(TICK) else {
            continue;
        };
        if link.role != Role::Control {
            continue; // Left over from a source that was refused.
        }
        door.listener.expect(Some(link.id));
        let peer = link.peer.clone();
        let over = || door.listener.expect(None);
        match offer::hear(guest, link, &watch.cancel, over) {
            Ok(offered) => {
                watch
                    .observer
                    .notice(&format!("a guest arrives from {peer}"));
                return arrival::run(guest, offered, door.incoming, options, watch);
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
