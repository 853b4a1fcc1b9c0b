//! The entries of the destination: accepts connections, and waits for a source.

use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::thread;

use hikkoshi_wire::{MAX_COPIED_DISKS, MAX_LINKS, Role};

use crate::destination::context::DestinationRun;
use crate::destination::error::{DestinationFailure, ReceiveError};
use crate::destination::host::{DestinationHost, WaitingVm};
use crate::destination::incoming::offer::{NoGuest, receive_offer};
use crate::destination::options::DestinationOptions;
use crate::destination::probe;
use crate::destination::receive_control::ReceiveControl;
use crate::destination::{receive_guest::receive_guest, resume_migration};
use crate::guest::DestinationGuest;
use crate::report::Account;
use hikkoshi_handover::{DestinationRecord, Outcome};
use hikkoshi_link::{AcceptedLink, Listener, TICK};
use hikkoshi_linux::CancelFlag;

/// Accepted links that may wait in the queue: all links of one migration (background, urgent,
/// frames, disks) can arrive before the first is handled, and the control link of the next
/// migration.
const LINKS: usize = MAX_LINKS as usize + MAX_COPIED_DISKS + 3;

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
    control: &ReceiveControl,
) -> Result<Account, ReceiveError> {
    receive_at(&mut WaitingVm(guest), listener, options, control)
}

/// Waits at `listener` for a source and takes its guest into a machine of `host`.
///
/// # Errors
/// The errors of [`receive`].
pub fn receive_at(
    host: &mut dyn DestinationHost,
    listener: &Listener,
    options: &DestinationOptions,
    control: &ReceiveControl,
) -> Result<Account, ReceiveError> {
    listener.set_migration(None);
    listening(listener, Outcome::AtSource, |acceptor| {
        accept(host, acceptor, options, control)
    })
}

/// Resumes a migration that another engine has begun and recorded, when its source connects at
/// `listener`.
///
/// If the guest was handed over, it runs meanwhile; its faults are answered when the source has
/// connected.
///
/// # Errors
/// The errors of [`receive`].
pub fn resume_receive(
    guest: &mut dyn DestinationGuest,
    record: DestinationRecord,
    listener: &Listener,
    options: &DestinationOptions,
    control: &ReceiveControl,
) -> Result<Account, ReceiveError> {
    listener.set_migration(Some(record.id));
    let outcome = resume_migration::recorded_outcome(record.stage);
    listening(listener, outcome, |acceptor| {
        let run = DestinationRun {
            options,
            control,
            incoming: acceptor.incoming,
        };
        resume_migration::resume(guest, record, run)
    })
}

/// Accepts connections while `lead` runs. `outcome` is where the guest is if that is impossible.
fn listening(
    listener: &Listener,
    outcome: Outcome,
    lead: impl FnOnce(&mut Acceptor<'_>) -> Result<Account, ReceiveError>,
) -> Result<Account, ReceiveError> {
    let stop = CancelFlag::new();
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
                let mut acceptor = Acceptor {
                    listener,
                    incoming: &incoming,
                };
                lead(&mut acceptor)
            }
            Err(error) => Err(ReceiveError {
                cause: DestinationFailure::Thread(error),
                outcome,
            }),
        }
    })
}

/// Sets the flag when it is dropped.
struct CancelOnDrop<'a>(&'a CancelFlag);

impl Drop for CancelOnDrop<'_> {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

/// Where connections are accepted.
struct Acceptor<'a> {
    listener: &'a Listener,
    incoming: &'a Receiver<AcceptedLink>,
}

/// Waits for sources until a guest was received, or its migration failed.
fn accept(
    host: &mut dyn DestinationHost,
    acceptor: &mut Acceptor<'_>,
    options: &DestinationOptions,
    control: &ReceiveControl,
) -> Result<Account, ReceiveError> {
    loop {
        if control.cancel.is_cancelled() {
            return Err(ReceiveError::at_source(DestinationFailure::Cancelled));
        }
        if let Some(over) = acceptor.listener.wait_ended() {
            return Err(ReceiveError::at_source(DestinationFailure::NoSource(over)));
        }
        let link = match acceptor.incoming.recv_timeout(TICK) {
            Ok(link) => link,
            Err(RecvTimeoutError::Timeout) => continue,
            Err(RecvTimeoutError::Disconnected) => {
                return Err(ReceiveError::at_source(
                    DestinationFailure::listener_failed(),
                ));
            }
        };
        if link.role != Role::Control {
            continue; // Left over from a source that was refused.
        }
        acceptor.listener.accept_only_links_of(&link);
        let peer = link.peer.clone();
        let over = || acceptor.listener.set_migration(None);
        match receive_offer(host, link, options, control, over) {
            Ok((guest, offered)) => {
                control
                    .observer
                    .notice(&format!("a guest arrives from {peer}"));
                let run = DestinationRun {
                    options,
                    control,
                    incoming: acceptor.incoming,
                };
                return receive_guest(guest, offered, peer, run);
            }
            Err(NoGuest::Compared(obstacles)) => {
                control.observer.notice(&match obstacles {
                    0 => format!("{peer} asked about its guest, which can be moved here"),
                    1 => format!("{peer} asked about its guest, which cannot be moved here: there is 1 obstacle"),
                    n => format!("{peer} asked about its guest, which cannot be moved here: there are {n} obstacles"),
                });
                host.discard();
                acceptor.listener.set_migration(None);
            }
            Err(NoGuest::Probes(request)) => {
                let (incoming, cancel) = (acceptor.incoming, &control.cancel);
                let over = || acceptor.listener.set_migration(None);
                let probed = probe::serve(*request, incoming, options, cancel, over);
                control.observer.notice(&match probed {
                    Ok(probed) => format!(
                        "{peer} has measured the line: {} MiB in {:.1} s",
                        probed.bytes >> 20,
                        probed.time.as_secs_f64()
                    ),
                    Err(why) => format!("{peer} has not measured the line: {why}"),
                });
            }
            Err(NoGuest::Refused(why)) => {
                control
                    .observer
                    .notice(&format!("refused a guest from {peer}: {why}"));
                host.discard();
                // Also when the source was not notified.
                acceptor.listener.set_migration(None);
            }
        }
    }
}
