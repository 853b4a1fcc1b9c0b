//! The fault threads: read userfaults, send page requests. Nothing else runs on this path.
//!
//! Several threads may read one userfaultfd; each message goes to one of them. They share the
//! installer and the request sender (`request_sender.rs`), and neither makes one thread wait for
//! another thread's system call. Nothing is allocated once they run.

use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use hikkoshi_linux::StopEventFd;
use hikkoshi_pages::PageRange;
use hikkoshi_userfault::{CopyError, EventBuffer, FaultWaiter, ReadError, Ready};
use hikkoshi_wire::{Frame, HEADER_LEN};
use std::os::fd::AsFd;

use crate::destination::error::DestinationFailure;
use crate::destination::options::DestinationOptions;
use crate::destination::postcopy::fault_counters::FaultCounters;
use crate::destination::postcopy::huge::staging::GAPS;
use crate::destination::postcopy::installer::{FaultAction, Installer};
use crate::destination::postcopy::request_sender::RequestSender;
use crate::destination::session::DestinationSessionEvent;
use crate::panic_notifier::PanicNotifier;
use hikkoshi_link::Stream;
use hikkoshi_linux::PriorityClass;

/// Faults read with one system call.
const BATCH: usize = 64;

/// Bytes of requests that one batch leads to.
pub(crate) const BATCH_BYTES: usize = BATCH * GAPS * HEADER_LEN;

/// A polling thread checks everything else once after this many reads of the userfaultfd: some 10
/// µs.
const SPINS: u32 = 64;

/// What the fault threads share.
#[derive(Debug)]
struct Shared {
    installer: Arc<Installer>,
    request_sender: Arc<RequestSender>,
    fault_counters: Arc<FaultCounters>,
    stop: StopEventFd,
    poll: bool,
}

/// Starts `threads` threads, one with each item of the iterator; if one cannot be started, the
/// others run. They read no fault until all missing pages are known. They end when `stop` is
/// stopped, or with an event when something fails.
pub(crate) fn start(
    installer: &Arc<Installer>,
    request_sender: &Arc<RequestSender>,
    fault_counters: &Arc<FaultCounters>,
    stop: &StopEventFd,
    events: &SyncSender<DestinationSessionEvent>,
    options: &DestinationOptions,
    threads: usize,
) -> impl Iterator<Item = Result<JoinHandle<()>, DestinationFailure>> {
    let shared = Arc::new(Shared {
        installer: Arc::clone(installer),
        request_sender: Arc::clone(request_sender),
        fault_counters: Arc::clone(fault_counters),
        stop: stop.clone(),
        poll: options.poll,
    });
    let priority = options.priority;
    (0..threads).map(move |number| {
        let mut fault_thread = FaultThread::new(Arc::clone(&shared))?;
        let events = events.clone();
        thread::Builder::new()
            .name(format!("dst-faults-{number}"))
            .spawn(move || {
                let died = DestinationSessionEvent::Failed(DestinationFailure::ThreadDied);
                let _notifier = PanicNotifier::new(&events, died);
                priority.apply(PriorityClass::Urgent);
                let installer = &fault_thread.shared.installer;
                installer.wait_until_missing_pages_are_known();
                if let Err(failure) = fault_thread.run() {
                    // After the end of the migration nothing receives events any more.
                    let _ = events.send(DestinationSessionEvent::Failed(failure));
                }
            })
            .map_err(DestinationFailure::Thread)
    })
}

/// One thread's own memory.
#[derive(Debug)]
struct FaultThread {
    shared: Arc<Shared>,
    watch: FaultWaiter<Stream>,
    buffer: EventBuffer,
    /// Host pages to request, and when their faults were read.
    wanted: Vec<(PageRange, u64)>,
    /// Host pages that the source does not owe.
    fills: Vec<PageRange>,
    frames: Vec<u8>,
}

impl FaultThread {
    fn new(shared: Arc<Shared>) -> Result<Self, ReadError> {
        let installer = &shared.installer;
        Ok(Self {
            watch: installer
                .copier
                .userfault()
                .waiter(&shared.stop, installer.requests.huge().event().as_fd())?,
            shared,
            buffer: EventBuffer::with_capacity(BATCH),
            wanted: Vec::with_capacity(BATCH),
            fills: Vec::with_capacity(BATCH),
            frames: Vec::with_capacity(BATCH_BYTES),
        })
    }

    fn run(&mut self) -> Result<(), DestinationFailure> {
        let shared = Arc::clone(&self.shared);
        let Shared {
            installer,
            request_sender,
            stop,
            ..
        } = &*shared;
        loop {
            request_sender.flush();
            if request_sender.is_overfull() {
                if stop.is_stopped() {
                    return Ok(());
                }
                request_sender.wait(stop);
                continue;
            }
            match self.next()? {
                Ready::Stopped => return Ok(()),
                Ready::ProcessGone => return Err(DestinationFailure::process_gone()),
                Ready::TimedOut => continue,
                Ready::Other => {
                    installer.requests.huge().event().clear();
                    while self.wanted.len() < BATCH
                        && let Some(turn) = installer
                            .requests
                            .next_admitted(installer.copier.layout(), &installer.missing)
                    {
                        self.wanted.push(turn);
                    }
                }
                Ready::Events => self.faults(),
            }
            self.answer()?;
        }
    }

    /// Waits, or polls, until there is something to do; the messages are in the buffer.
    fn next(&mut self) -> Result<Ready, DestinationFailure> {
        let Shared {
            installer,
            request_sender,
            poll,
            ..
        } = &*self.shared;
        let userfault = installer.copier.userfault();
        let watch = &mut self.watch;
        let mut wait = |timeout| {
            watch.set_writing(request_sender.waits_for())?;
            watch.wait(timeout)
        };
        loop {
            if *poll {
                for _ in 0..SPINS {
                    if userfault.read(&mut self.buffer)? > 0 {
                        return Ok(Ready::Events);
                    }
                    std::hint::spin_loop();
                }
                match wait(Some(Duration::ZERO))? {
                    Ready::TimedOut | Ready::Events => {}
                    ready => return Ok(ready),
                }
            } else {
                match wait(None)? {
                    Ready::Events => {}
                    ready => return Ok(ready),
                }
                // Another thread may have been faster.
                if userfault.read(&mut self.buffer)? > 0 {
                    return Ok(Ready::Events);
                }
            }
        }
    }

    /// Decides about the messages in the buffer: the results are in `wanted` and `fills`.
    fn faults(&mut self) {
        let Shared {
            installer,
            fault_counters,
            ..
        } = &*self.shared;
        let read = installer.requests.fault_time();
        while let Some(event) = self.buffer.pop() {
            let hikkoshi_userfault::UserfaultEvent::Fault(fault) = event else {
                // No other events were registered.
                tracing::warn!(?event, "an event of the userfaultfd that was not asked for");
                continue;
            };
            fault_counters.faulted(fault.thread);
            match installer.decide(fault.addr, read) {
                FaultAction::Request(range) => self.wanted.push((range, read)),
                FaultAction::Fill(range) => self.fills.push(range),
                FaultAction::Nothing => {}
            }
        }
    }

    /// Sends requests first: their answers take a round trip, and filling takes time.
    fn answer(&mut self) -> Result<(), DestinationFailure> {
        self.ask();
        let Shared {
            installer, stop, ..
        } = &*self.shared;
        for range in self.fills.drain(..) {
            loop {
                match installer.copier.fill(range) {
                    Ok(()) => break,
                    // The wait for memory was interrupted, which concerns only receivers.
                    Err(CopyError::OutOfMemory { .. })
                        if installer.copier.memory_pressure().waits_for_memory()
                            && !stop.is_stopped() =>
                    {
                        thread::sleep(Duration::from_millis(1));
                    }
                    Err(error) => return Err(DestinationFailure::Install(error.into())),
                }
            }
        }
        Ok(())
    }

    /// Sends all requests with one system call.
    fn ask(&mut self) {
        if self.wanted.is_empty() {
            return;
        }
        let Shared {
            installer,
            request_sender,
            ..
        } = &*self.shared;
        self.frames.clear();
        for (range, _) in &self.wanted {
            installer.requests.ranges(*range, |range| {
                self.frames.extend(Frame::Request { range }.encode());
            });
        }
        let now = installer.requests.now();
        for (range, read) in self.wanted.drain(..) {
            installer
                .requests
                .sent(range, read, now, &installer.missing);
        }
        request_sender.send(&self.frames);
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests;
