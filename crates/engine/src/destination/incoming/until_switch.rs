//! Receives memory and device state until the source's *Switch*.

use std::time::Instant;

use error_reporter::Report;
use hikkoshi_wire::{DeviceStateDigest, ToDestination, ToSource};

use crate::destination::error::DestinationFailure;
use crate::destination::incoming::incoming_migration::IncomingMigration;
use crate::destination::postcopy::missing_pages::MissingPages;
use crate::destination::session::DestinationSessionEvent;
use crate::guest::DestinationGuest;
use crate::report::{Counters, SwitchoverSteps};

const DOING: &str = "receiving the guest";

/// What the source sends when its guest is paused and everything but the *commit* has been sent.
#[derive(Debug)]
pub(crate) struct SwitchMessage {
    pub(crate) postcopy: bool,
    pub(crate) running: bool,
    pub(crate) at: Instant,
}

/// What was received since the last *DiscardEnd*: since the source has paused the guest, if no
/// other follows.
#[derive(Debug, Default)]
struct ReceivedWhilePaused {
    /// When the first message came.
    first: Option<Instant>,
    /// When the last stale pages had been dropped.
    dropped: Option<Instant>,
}

impl ReceivedWhilePaused {
    /// A message has come.
    fn begin(&mut self) {
        self.first.get_or_insert_with(Instant::now);
    }

    /// Begins the account of the switchover, unless the owner of the guest had paused it.
    fn begin_steps(&self, switch: &SwitchMessage, steps: &SwitchoverSteps) {
        if !switch.running {
            return;
        }
        steps.begin_with(self.first.unwrap_or(switch.at), switch.at);
        if let Some(at) = self.dropped {
            steps.done_at("stale pages dropped", at);
        }
        steps.done_at("everything received", switch.at);
    }
}

impl IncomingMigration<'_> {
    /// Receives memory and device state while the guest runs at the source, until the source
    /// reports that it is paused.
    pub(crate) fn receive_until_switch(
        &mut self,
        guest: &mut dyn DestinationGuest,
    ) -> Result<(SwitchMessage, Vec<u8>), DestinationFailure> {
        let doing = DOING;
        let mut received = ReceivedWhilePaused::default();
        let mut digest = DeviceStateDigest::new();
        let mut state = Vec::new();
        loop {
            self.check()?;
            let message = match self.session.next() {
                None => {
                    self.check_silence(doing)?;
                    if guest.has_ended() {
                        return Err(DestinationFailure::process_ended(guest));
                    }
                    guest.check_receiving()?;
                    continue;
                }
                Some(DestinationSessionEvent::Message(message)) => message,
                Some(DestinationSessionEvent::Failed(failure)) => return Err(failure),
                Some(other) => return Err(DestinationFailure::unexpected(doing, &other)),
            };
            self.silence.reset();
            match message {
                ToDestination::Discard { ranges } => {
                    received.begin();
                    self.discard(guest, &ranges)?;
                    received.dropped = Some(Instant::now());
                }
                ToDestination::DiscardEnd => {
                    // The source has not paused the guest yet.
                    received = ReceivedWhilePaused::default();
                    self.register()?;
                    self.session
                        .send(&ToSource::Discarded, "dropping stale pages")?;
                }
                ToDestination::DeviceStateChunk { bytes } => {
                    received.begin();
                    // Also limits the total size.
                    digest.update(&bytes).map_err(device_state)?;
                    Counters::add(
                        &self.context.counters.device_state_bytes,
                        bytes.len() as u64,
                    );
                    state.extend_from_slice(&bytes);
                }
                ToDestination::Switch {
                    device_bytes,
                    device_crc32c,
                    owed_pages,
                    postcopy,
                    running,
                } => {
                    digest
                        .verify(device_bytes, device_crc32c)
                        .map_err(device_state)?;
                    self.check_owed(owed_pages, postcopy)?;
                    let switch = SwitchMessage {
                        postcopy,
                        running,
                        at: Instant::now(),
                    };
                    received.begin_steps(&switch, &self.context.steps);
                    return Ok((switch, state));
                }
                ToDestination::Cancel { reason } => {
                    return Err(DestinationFailure::CancelledBySource(reason));
                }
                other => return Err(DestinationFailure::unexpected(doing, &other)),
            }
        }
    }

    /// Fails if the source owes other pages than are missing here, or they could not follow.
    fn check_owed(&self, owed_pages: u64, postcopy: bool) -> Result<(), DestinationFailure> {
        let missing = self.postcopy.missing();
        let owed = missing.map_or(0, MissingPages::count);
        // Without post-copy, pages that are still owed would never arrive, and nobody would
        // unregister memory.
        let possible = match missing {
            Some(_) => postcopy || (owed == 0 && !self.postcopy.is_registered()),
            None => !postcopy,
        };
        if owed == owed_pages && possible {
            return Ok(());
        }
        let text =
            format!("a switch with {owed_pages} pages owed (here: {owed}), post-copy: {postcopy}");
        Err(DestinationFailure::unexpected(DOING, &text))
    }
}

fn device_state(error: impl std::error::Error) -> DestinationFailure {
    DestinationFailure::DeviceState(Report::new(error).to_string())
}
