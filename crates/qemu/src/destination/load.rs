//! Prepares QEMU for the incoming guest, and loads the device state.

use std::time::Instant;

use serde_json::json;

use super::load_timeout::LOAD_TIMEOUT;
use super::qemu_output::Written;
use super::resume_guest::{open_announcer, opened};
use super::vcpus;
use super::{LoadError, PrepareError, QemuDestination};
use crate::migration_settings::{self, Settings};
use crate::network::{self, Announcer};
use crate::qmp::migration_status::{self, MigrationStatus};
use crate::qmp::reconnect::connected;
use crate::qmp::{COMMAND_TIMEOUT, Version};
use crate::ram::blocks;
use crate::stream::{self, DeviceStateWriter};
use hikkoshi_account::Side;

/// From this version on, `exit-on-error` can be turned off: QEMU then survives a bad
/// stream and reports what is wrong with it.
const EXIT_ON_ERROR_SINCE: Version = Version::new(9, 1, 0);

impl QemuDestination {
    /// Makes everything ready that does not need the device state.
    pub(super) fn ready(&mut self) -> Result<(), PrepareError> {
        self.prepared = true;
        if let Some(exit_watch) = &self.exit_watch {
            exit_watch.disable();
        }
        if let Some(piped) = &self.piped {
            let cards = piped.cards();
            self.vcpus = vcpus::named(&self.process);
            self.announcer = opened(Announcer::for_cards(
                network::cards_of(cards),
                &self.process,
            ));
            return Ok(());
        }
        let client = connected(&mut self.client)?;
        let state = migration_status::run_state(client)?.status;
        if state != "inmigrate" {
            return Err(PrepareError::State { state });
        }
        if let Some(difference) = blocks::difference(self.ram.layout(), &blocks::list(client)?) {
            return Err(PrepareError::MemoryChanged { difference });
        }
        // In this state `stop` pauses nothing. It prevents QEMU from starting the
        // guest at the end of the load, whether QEMU was started with -S or not
        // (tested with 7.2 and 10.0).
        client.execute("stop", json!({}))?;
        if self.settings == Settings::default() {
            let (before, after) = migration_settings::plan(client, Side::Destination)?;
            self.reattach_info
                .change(|info| info.settings = before.clone());
            self.settings = before;
            migration_settings::apply(client, &after)?;
        }
        if self.socket.is_none() {
            // Now, and not during the downtime: QEMU waits for the first byte.
            self.socket = Some(stream::open(client)?);
            let uri = format!("fd:{}", stream::FD_NAME);
            let mut arguments = json!({ "uri": uri });
            if client.version() >= EXIT_ON_ERROR_SINCE {
                arguments["exit-on-error"] = false.into();
            }
            client.execute("migrate-incoming", arguments)?;
        }
        // Now, because later QEMU may wait for a page and not answer.
        self.vcpus = vcpus::query(client)?;
        self.announcer = open_announcer(client, &self.process);
        Ok(())
    }

    /// Loads the device state.
    pub(super) fn load(&mut self, state: Vec<u8>) -> Result<(), LoadError> {
        if let Some(userfault) = &self.userfault {
            // Loading touches missing pages. If we die or are dropped, they must not read as
            // zeros.
            userfault.leave_open_on_drop();
        }
        self.loading = true;
        let cancel = self.cancel.clone();
        if let Some(piped) = &mut self.piped {
            let cancel = cancel.unwrap_or_default();
            piped.load(&state, &cancel)?;
            self.loaded = true;
            return Ok(());
        }
        let client = connected(&mut self.client)?;
        client.set_cancel(cancel);
        client.set_timeout(LOAD_TIMEOUT);
        let outcome = self.load_within(state);
        let client = connected(&mut self.client)?;
        client.set_cancel(None);
        client.set_timeout(COMMAND_TIMEOUT);
        self.loaded = outcome.is_ok();
        outcome
    }

    fn load_within(&mut self, state: Vec<u8>) -> Result<(), LoadError> {
        let began = Instant::now();
        let bytes = state.len();
        let socket = self.socket.take().ok_or(LoadError::NotPrepared)?;
        let tpm = self.has_tpm();
        let client = connected(&mut self.client)?;
        client.forget_events();
        // Dropped at the end, which aborts a load that is still in progress.
        let written = Written::from_now_on(&self.process);
        let refused = |error| LoadError::Refused {
            tpm,
            error,
            written: written.as_ref().and_then(Written::text),
        };
        let _writer = DeviceStateWriter::start(socket, state)?;
        let mut ran = false;
        let status = migration_status::wait_status(
            client,
            "the device state to be loaded",
            LOAD_TIMEOUT,
            MigrationStatus::is_over,
            |event| ran |= event.name == "RESUME",
        );
        match status {
            Ok(Some(MigrationStatus::Completed)) => {}
            Ok(Some(_)) => {
                // Old versions exit right after they report this.
                let error = migration_status::query(client)
                    .ok()
                    .and_then(|info| info.error);
                return Err(refused(error));
            }
            Ok(None) => return Err(LoadError::TimedOut),
            Err(error) if error.is_closed() => return Err(refused(None)),
            Err(error) => return Err(error.into()),
        }
        // A guest that starts too early does so before QEMU reports "completed". A
        // query would add to the downtime.
        if ran {
            client.execute("stop", json!({}))?;
            return Err(LoadError::Ran);
        }
        tracing::debug!(bytes, took = ?began.elapsed(), "the device state is loaded");
        Ok(())
    }
}
