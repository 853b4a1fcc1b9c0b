//! Watches what libvirt's other clients do to a domain that is moved away.
//!
//! libvirt does not know of the move. QEMU itself refuses most of what would harm the guest
//! (`disks/move_lock.rs` of the QEMU adapter), but a domain can be reset and destroyed, and one
//! whose QEMU does not refuse it can be resumed. The watch has a connection of its own, with
//! libvirt's events. It outlives the daemon, which may be restarted.
//!
//! From *commit* on the domain's guest is a stale copy. If it is resumed, the watch pauses it
//! again. What the copy has written to its memory meanwhile is not the guest's at the destination,
//! so the engine sends no more pages.
//!
//! What is done while the watch is not connected has no event: another client may reach a restarted
//! daemon first. So each connection begins with a look at the guest. A reset of a paused guest
//! changes QEMU's state to `prelaunch`, which is also that of one that has never run.
//!
//! An event can come late. So one counts by its time, which is QEMU's: what was done before
//! hikkoshi paused the guest is the guest's own past.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use virt::domain::Domain;
use virt::sys;

use crate::DomainError;
use crate::daemon::{ATTEMPT_TIMEOUT, Daemon, OpenDomain};
use crate::lifecycle::{DomainEvent, LifecycleEvents, Stopped};

/// How often to look whether the watch has ended, or the daemon.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// How long libvirt may take to report that QEMU has ended.
const END_TIMEOUT: Duration = Duration::from_secs(3);

/// Events that wait for the watch.
const EVENTS: usize = 64;

/// For QEMU's state of the guest.
const QUERY_STATUS: &str = r#"{"execute":"query-status"}"#;

/// What the watch asks libvirt, and has it do.
trait Guest {
    /// Whether it runs, as far as libvirt knows.
    fn is_running(&self) -> bool;

    /// Whether it was reset since it was paused, or has never run, as QEMU says. `None`: not known.
    fn was_reset(&self) -> Option<bool>;

    /// Pauses it.
    fn suspend(&self) -> Result<(), String>;

    /// Lets it run.
    fn resume(&self) -> Result<(), String>;
}

impl Guest for Domain {
    fn is_running(&self) -> bool {
        self.get_state()
            .is_ok_and(|(state, _)| state == sys::VIR_DOMAIN_RUNNING)
    }

    fn was_reset(&self) -> Option<bool> {
        let answer = self.qemu_monitor_command(QUERY_STATUS, 0);
        let answer = answer.inspect_err(|error| {
            tracing::debug!(
                error = error.message(),
                "asking whether the guest was reset"
            );
        });
        let answer: serde_json::Value = serde_json::from_str(&answer.ok()?).ok()?;
        Some(answer["return"]["status"].as_str()? == "prelaunch")
    }

    fn suspend(&self) -> Result<(), String> {
        let suspended = Self::suspend(self);
        suspended
            .map(drop)
            .map_err(|error| error.message().to_owned())
    }

    fn resume(&self) -> Result<(), String> {
        let resumed = Self::resume(self);
        resumed
            .map(drop)
            .map_err(|error| error.message().to_owned())
    }
}

/// Watches a domain until it is dropped.
#[derive(Debug)]
pub(crate) struct DomainWatch(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    daemon: Daemon,
    name: String,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// The watch was dropped.
    over: bool,
    /// Whether the events of the domain are received.
    connected: bool,
    /// The guest may belong to the destination, and was paused at that time.
    handed_over: Option<SystemTime>,
    /// The guest's last reset.
    reset: Option<SystemTime>,
    /// When the guest was last resumed.
    resumed: Option<SystemTime>,
    /// What the guest said when it was last looked at ([`Guest::was_reset`]).
    was_reset: Option<bool>,
    /// hikkoshi ends the domain.
    ending: bool,
    /// What makes the guest's memory here useless, and was not reported yet.
    harm: Option<DomainError>,
    /// Why the domain has ended.
    stopped: Option<Stopped>,
}

impl DomainWatch {
    /// Starts to watch the domain, on a thread of its own.
    pub(crate) fn start(daemon: &Daemon, name: &str) -> Self {
        let shared = Arc::new(Shared {
            daemon: daemon.clone(),
            name: name.to_owned(),
            state: Mutex::default(),
            changed: Condvar::new(),
        });
        let watching = Arc::clone(&shared);
        let started = thread::Builder::new()
            .name("libvirt-watch".to_owned())
            .spawn(move || watching.run());
        if let Err(error) = started {
            tracing::warn!(
                %error,
                "starting the thread that watches the domain: what other clients of libvirt do to it \
                 is not noticed"
            );
        }
        Self(shared)
    }

    /// From now on the domain must not run, because its guest may run elsewhere. The guest was
    /// `paused` for that at this time; `None`: before the watch began.
    pub(crate) fn handing_over(&self, paused: Option<SystemTime>) {
        self.0.handing_over(paused.unwrap_or(UNIX_EPOCH));
    }

    /// Checks that the guest, which was `paused` at that time and is not handed over yet, was
    /// neither resumed nor reset since, as far as libvirt has reported it.
    ///
    /// # Errors
    ///
    /// [`DomainError::Changed`].
    pub(crate) fn check_untouched(&self, paused: SystemTime) -> Result<(), DomainError> {
        let state = self.0.lock();
        let what = match (state.resumed, state.reset) {
            (Some(at), _) if at > paused => "another client of libvirt has resumed its guest",
            (_, Some(at)) if at > paused => "another client of libvirt has reset its guest",
            _ => return Ok(()),
        };
        Err(DomainError::Changed {
            name: self.0.name.clone(),
            what: what.to_owned(),
        })
    }

    /// The guest belongs to this domain again.
    pub(crate) fn taken_back(&self) {
        self.0.lock().handed_over = None;
    }

    /// hikkoshi is about to end the domain.
    pub(crate) fn ending(&self) {
        self.0.lock().ending = true;
    }

    /// What was done to the handed-over guest since the last call.
    pub(crate) fn take_harm(&self) -> Option<DomainError> {
        self.0.lock().harm.take()
    }

    /// Why the domain has ended; waits until libvirt reports it.
    pub(crate) fn why_ended(&self) -> Option<String> {
        let deadline = Instant::now() + END_TIMEOUT;
        let mut state = self.0.lock();
        loop {
            if let Some(stopped) = state.stopped {
                return Some(explain(stopped));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() || !state.connected {
                return None;
            }
            let waited = self.0.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Drop for DomainWatch {
    fn drop(&mut self) {
        self.0.lock().over = true;
    }
}

/// A connection, and the events of the domain over it.
struct Watched {
    open: OpenDomain,
    _events: LifecycleEvents,
    /// Whether the domain was looked at before it was handed over, and since then.
    looked: [bool; 2],
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) {
        let (sender, events) = sync_channel(EVENTS);
        let mut watched: Option<Watched> = None;
        while !self.lock().over {
            watched = watched.filter(|watched| watched.open.connection.is_alive());
            if watched.is_none() {
                watched = self.connect(&sender);
            }
            self.lock().connected = watched.is_some();
            match &mut watched {
                Some(watched) => self.look(watched, &events),
                None => thread::sleep(POLL_INTERVAL),
            }
        }
    }

    fn connect(&self, events: &SyncSender<DomainEvent>) -> Option<Watched> {
        let open = self.daemon.connect(ATTEMPT_TIMEOUT);
        let open = open.inspect_err(|error| tracing::debug!(%error, "watching the domain"));
        let open = open.ok()?;
        let events = LifecycleEvents::subscribe(&open.connection, &open.domain, events);
        let events = events.inspect_err(|error| tracing::debug!(error, "watching the domain"));
        Some(Watched {
            _events: events.ok()?,
            open,
            looked: [false; 2],
        })
    }

    fn handing_over(&self, paused: SystemTime) {
        let (reset, resumed) = {
            let mut state = self.lock();
            state.handed_over = Some(paused);
            (state.reset, state.resumed)
        };
        // The event may have come first.
        let since = |at: Option<SystemTime>| at.is_some_and(|at| at > paused);
        if since(resumed) {
            self.harm(DomainError::Resumed {
                name: self.name.clone(),
                not_paused: None,
            });
        } else if since(reset) {
            self.was_reset();
        }
    }

    /// Handles the next event, if there is one soon.
    fn look(&self, watched: &mut Watched, events: &Receiver<DomainEvent>) {
        let domain = &watched.open.domain;
        let looked = &mut watched.looked[usize::from(self.handed_over().is_some())];
        if !*looked {
            *looked = true;
            self.looked(domain);
        }
        if let Ok(event) = events.recv_timeout(POLL_INTERVAL) {
            self.handle(event, domain);
        }
    }

    /// Looks at the guest: an event may have come before it was handed over, or may be missing,
    /// because the daemon was away.
    fn looked(&self, domain: &impl Guest) {
        if self.handed_over().is_some() && domain.is_running() {
            self.resumed(domain);
            return;
        }
        let Some(was_reset) = domain.was_reset() else {
            return;
        };
        let before = self.lock().was_reset.replace(was_reset);
        let Some(paused) = self.handed_over() else {
            return;
        };
        // One that was handed over by another engine: what happened before was reported, or is
        // reported by the check at the beginning.
        let is_new = before.map_or(paused > UNIX_EPOCH, |before| !before);
        if was_reset && is_new {
            self.was_reset();
        }
    }

    fn handle(&self, event: DomainEvent, domain: &impl Guest) {
        match event {
            DomainEvent::Resumed(at) => {
                self.lock().resumed = Some(at);
                // If it runs, it was resumed, whatever the clock says.
                if let Some(paused) = self.handed_over()
                    && (at > paused || domain.is_running())
                {
                    self.resumed(domain);
                }
            }
            DomainEvent::Reset(at) => {
                self.lock().reset = Some(at);
                if self.handed_over().is_some_and(|paused| at > paused) {
                    self.was_reset();
                }
            }
            DomainEvent::Device(device) => {
                if self.handed_over().is_some() {
                    tracing::warn!(
                        domain = self.name,
                        device,
                        "a device was plugged or unplugged at the source after the guest was handed \
                         over: the guest at the destination is as it was before"
                    );
                }
            }
            DomainEvent::Stopped(stopped) => self.stopped(stopped),
        }
    }

    /// When the guest was paused, if it may belong to the destination.
    fn handed_over(&self) -> Option<SystemTime> {
        let state = self.lock();
        state.handed_over.filter(|_| !state.ending)
    }

    fn was_reset(&self) {
        self.lock().was_reset = Some(true);
        self.harm(DomainError::Reset {
            name: self.name.clone(),
        });
    }

    /// The stale copy of the guest runs.
    fn resumed(&self, domain: &impl Guest) {
        let paused = domain.suspend();
        let (handed_over, ending) = {
            let state = self.lock();
            (state.handed_over.is_some(), state.ending)
        };
        if ending {
            return;
        }
        if !handed_over {
            // It was taken back, and resumed, since this was decided.
            if let Err(error) = domain.resume() {
                tracing::error!(
                    domain = self.name,
                    %error,
                    "the domain belongs here again, but was paused by hikkoshi's watch at that \
                     moment, and cannot be resumed: resume it by 'virsh resume'"
                );
            }
            return;
        }
        // Another one may have done it, or ended the domain.
        let what = match paused {
            Err(error) if domain.is_running() => Some(error),
            _ => None,
        };
        self.harm(DomainError::Resumed {
            name: self.name.clone(),
            not_paused: what,
        });
    }

    fn harm(&self, harm: DomainError) {
        tracing::error!(error = %harm, "the domain at the source was changed after the handover");
        self.lock().harm.get_or_insert(harm);
    }

    fn stopped(&self, stopped: Stopped) {
        let mut state = self.lock();
        state.stopped = Some(stopped);
        let expected = state.ending;
        drop(state);
        self.changed.notify_all();
        if !expected {
            let why = explain(stopped);
            tracing::warn!(
                domain = self.name,
                why,
                "the domain has ended at the source"
            );
        }
    }
}

fn explain(stopped: Stopped) -> String {
    match stopped {
        Stopped::ShutDown => "libvirt reports that it was shut down".to_owned(),
        Stopped::Destroyed => {
            "a client of libvirt has destroyed the domain, as 'virsh destroy' does".to_owned()
        }
        Stopped::Crashed => "libvirt reports that it has crashed, or was killed".to_owned(),
        Stopped::Migrated => {
            "a client of libvirt has migrated the domain, as 'virsh migrate' does".to_owned()
        }
        Stopped::Saved => {
            "a client of libvirt has saved the domain to a file, as 'virsh save' does".to_owned()
        }
        Stopped::Other(number) => format!("libvirt reports reason {number} of its end"),
    }
}

#[cfg(test)]
mod tests;
