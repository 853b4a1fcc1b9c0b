//! The engine's interface to a destination.

use std::sync::Arc;
use std::time::{Duration, Instant};

use error_reporter::Report;
use hikkoshi_engine::{
    CancelFlag, DestinationDisks, DestinationGuest, DestinationProcess, DiskComparison,
    DiskConnection, FrameDelivery, GuestError, Hardware, ThreadName,
};
use hikkoshi_linux::Process;
use hikkoshi_memory::GuestRam;
use hikkoshi_userfault::Userfault;
use hikkoshi_wire::{GuestDescription, GuestDisks};

use super::shutdown_listener::{FirstRequests, ShutdownListener};
use super::vcpus;
use super::{KillError, QemuDestination, ReleaseDestinationError};
use crate::device_tree::OWN_SWTPM;
use crate::migration_settings::Settings;
use crate::network;
use crate::process::{oom_kills, privileges};
use crate::qmp::reconnect::connected;

impl DestinationGuest for QemuDestination {
    fn describe(&self) -> &GuestDescription {
        &self.identity.description
    }

    fn hardware(&self) -> Hardware {
        Hardware {
            processors: self.processors.clone(),
            machine: self.machine.clone(),
        }
    }

    fn ram(&self) -> Arc<GuestRam> {
        Arc::clone(&self.ram)
    }

    fn deliver_frames(&mut self) -> Result<Option<Box<dyn FrameDelivery>>, GuestError> {
        if let Some(piped) = &self.piped {
            let cards = network::cards_of(piped.cards());
            return network::deliver_to(cards, &self.process).map_err(GuestError::new);
        }
        let client = connected(&mut self.client).map_err(GuestError::new)?;
        network::deliver(client, &self.process).map_err(GuestError::new)
    }

    fn disks(&mut self) -> Option<&mut dyn DestinationDisks> {
        Some(self)
    }

    fn process(&mut self) -> Option<&mut dyn DestinationProcess> {
        Some(self)
    }

    fn prepare(&mut self) -> Result<(), GuestError> {
        self.ready().map_err(GuestError::new)
    }

    fn take_userfault(&mut self) -> Result<(Arc<Userfault>, Vec<u64>), GuestError> {
        let userfault = self.userfault().map_err(GuestError::new)?;
        Ok((userfault, self.identity.addresses()))
    }

    fn load_device_state(&mut self, state: Vec<u8>) -> Result<(), GuestError> {
        self.load(state).map_err(|error| {
            let for_peer = error.without_reasons();
            let error = GuestError::new(error);
            match for_peer {
                // What QEMU wrote explains its end, too.
                Some(text) => error.explaining_end().with_text_for_peer(text),
                None => error,
            }
        })
    }

    fn resume(&mut self, running: bool, give_up: &CancelFlag) -> Result<Instant, GuestError> {
        self.run(running, give_up).map_err(GuestError::new)
    }

    fn kill(&mut self) -> Result<(), GuestError> {
        let pid = self.process.pid();
        self.process
            .kill()
            .map_err(|source| GuestError::new(KillError { pid, source }))
    }

    fn has_ended(&self) -> bool {
        Self::has_ended(self)
    }

    fn name_thread(&self, thread: u32) -> Option<ThreadName> {
        vcpus::name(&self.process, &self.vcpus, thread)
    }

    fn abandon_userfault(&mut self) {
        // Another engine continues. It also finds the settings unrestored, which
        // cannot be changed while QEMU waits for a page.
        self.settings = Settings::default();
        if let Some(piped) = &mut self.piped {
            piped.keep();
        }
        if let Some(userfault) = self.userfault.take() {
            tracing::debug!(
                pid = self.process.pid(),
                number = userfault.remote(),
                "leaving the userfaultfd in QEMU, because pages may be missing"
            );
            userfault.leave_open_on_drop();
        }
    }

    fn release(&mut self) -> Result<(), GuestError> {
        self.release_qemu().map_err(GuestError::new)
    }
}

impl DestinationDisks for QemuDestination {
    fn compare(&mut self, disks: &GuestDisks) -> Result<DiskComparison, GuestError> {
        self.compare(disks).map_err(GuestError::new)
    }

    fn serve(&mut self, disks: &GuestDisks) -> Result<(), GuestError> {
        self.serve(disks).map_err(GuestError::new)
    }

    fn connect(&mut self, number: usize) -> Result<DiskConnection, GuestError> {
        self.connect_served(number).map_err(GuestError::new)
    }

    fn end(&mut self) -> Result<(), GuestError> {
        self.end_flushes().map_err(GuestError::new)?;
        self.end_daemon().map_err(GuestError::new)?;
        let ended = self.end_server().map_err(ReleaseDestinationError::Disks);
        ended.map_err(GuestError::new)
    }
}

impl DestinationProcess for QemuDestination {
    fn postcopy_obstacles(&mut self) -> Vec<GuestError> {
        let files = self.check_files().err().map(GuestError::new);
        let userfault = privileges::check_userfaultfd(&self.process);
        files
            .into_iter()
            .chain(userfault.err().map(GuestError::new))
            .collect()
    }

    fn filling_userfault(&mut self) -> Result<Option<Arc<Userfault>>, GuestError> {
        let created = self.own_userfault().map_err(GuestError::new)?;
        Ok(Some(created))
    }

    fn check_receiving(&mut self) -> Result<(), GuestError> {
        self.check_flushed().map_err(GuestError::new)?;
        match &mut self.piped {
            Some(piped) => piped.check_receiving().map_err(GuestError::new),
            None => Ok(()),
        }
    }

    fn never_ran(&mut self) -> bool {
        self.never_ran
    }

    fn watch_for_end(&mut self) {
        if self.listener.is_some() {
            return;
        }
        let (monitor, process) = (Arc::clone(&self.monitor), Arc::clone(&self.process));
        let announce = std::mem::take(&mut self.announce_self);
        let first = FirstRequests {
            announce: announce.then(|| self.settings.parameters.clone()),
            // Another engine may have received the event.
            run_state: self.reattached,
        };
        match ShutdownListener::start(self.client.take(), monitor, process, first) {
            Ok(listener) => self.listener = Some(listener),
            Err(error) => tracing::warn!(
                error = %Report::new(&error),
                "listening to QEMU's events: a guest that shuts itself down will be reported as lost"
            ),
        }
    }

    fn is_shut_down(&mut self, limit: Duration) -> Option<bool> {
        let seen = match &self.listener {
            Some(listener) => listener.is_shut_down(limit),
            None => (!self.reattached).then_some(false),
        };
        // A machine that has ended is another event.
        seen.or_else(|| Self::has_ended(self).then_some(false))
    }

    fn has_shut_down(&mut self) -> bool {
        let listener = self.listener.as_ref();
        listener.is_some_and(ShutdownListener::has_shut_down)
    }

    fn why_ended(&mut self) -> Option<String> {
        let killed = oom_kills::since(self.oom_kills.as_ref());
        let is_loading = self.loading && !self.loaded;
        // QEMU before 9.1 ends when it cannot load the state.
        let load = || (is_loading && self.has_tpm()).then(|| format!("it needs {OWN_SWTPM}"));
        killed.or_else(load)
    }

    fn process_memory(&mut self) -> Option<(Arc<Process>, Vec<u64>)> {
        Some((Arc::clone(&self.process), self.identity.addresses()))
    }

    fn complete(&mut self) -> Option<String> {
        self.monitor.complete()
    }
}
