//! Loads the device state.

use std::thread;
use std::time::Duration;

use hikkoshi_wire::ToDestination;

use crate::destination::error::DestinationFailure;
use crate::destination::incoming::incoming_migration::IncomingMigration;
use crate::destination::session::DestinationSessionEvent;
use crate::guest::DestinationGuest;

impl IncomingMigration<'_> {
    /// Loads the device state. Loading touches memory, and so waits for pages that never arrive if
    /// a link fails meanwhile: this thread watches the links.
    pub(super) fn load(
        &mut self,
        guest: &mut dyn DestinationGuest,
        state: Vec<u8>,
    ) -> Result<(), DestinationFailure> {
        let returned = self.session.events();
        thread::scope(|scope| {
            let loader = thread::Builder::new()
                .name("dst-load".into())
                .spawn_scoped(scope, || {
                    let loaded = guest.load_device_state(state);
                    // If the queue is full, the main thread is awake.
                    let _ = returned.try_send(DestinationSessionEvent::GuestCallReturned);
                    loaded
                })
                .map_err(DestinationFailure::Thread)?;
            let mut failure = None;
            while !loader.is_finished() {
                if failure.is_none() {
                    failure = self.watch_load().err();
                    if failure.is_some() {
                        // The guest will not run here. Releasing its memory lets every waiting
                        // thread continue, the loading thread included.
                        self.release_memory();
                    }
                } else {
                    thread::sleep(hikkoshi_link::TICK);
                }
            }
            let loaded = loader.join().map_err(|_| {
                DestinationFailure::DeviceState("the loading thread panicked".into())
            })?;
            match failure {
                Some(failure) => Err(failure),
                None => Ok(loaded?),
            }
        })
    }

    /// Handles one event while the device state is loaded.
    fn watch_load(&mut self) -> Result<(), DestinationFailure> {
        self.check()?;
        match self.session.next_within(Duration::from_millis(1)) {
            None
            | Some(
                DestinationSessionEvent::AllReceived | DestinationSessionEvent::GuestCallReturned,
            ) => self.check_silence("loading the device state"),
            Some(DestinationSessionEvent::Failed(failure)) => Err(failure),
            Some(DestinationSessionEvent::Message(ToDestination::Cancel { reason })) => {
                Err(DestinationFailure::CancelledBySource(reason))
            }
            Some(other) => Err(DestinationFailure::unexpected(
                "loading the device state",
                &other,
            )),
        }
    }
}
