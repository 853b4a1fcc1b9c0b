//! Delivers the frames that arrived for the guest at the source.

use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use error_reporter::Report;
use hikkoshi_link::{LinkError, LinkReader, LinkWriter};
use hikkoshi_wire::{NetworkFrame, ToDestination, ToSource};

use crate::control_link::{QUEUED_EVENTS, start_reader};
use crate::network_frames::{FrameDelivery, KeptFrame};
use crate::report::FramesAccount;

/// The most bytes that are kept until the guest runs, each frame counted with its overhead.
const MAX_KEPT_BYTES: usize = 8 << 20;

/// How often the thread notes what the network delivers here by itself.
const OBSERVE_INTERVAL: Duration = Duration::from_millis(100);

/// The memory that a frame takes in addition to its content, in bytes.
const FRAME_OVERHEAD: usize = 64;

/// What the thread that delivers waits for.
#[derive(Debug)]
enum FrameEvent {
    Message(Result<ToDestination, LinkError>),
    /// The guest runs here, and was announced to its networks.
    GuestRuns,
}

/// Receives frames, and delivers them once the guest runs.
#[derive(Debug)]
pub(crate) struct FrameReceiver {
    /// Dropped to end the threads.
    events: SyncSender<FrameEvent>,
    thread: JoinHandle<FramesAccount>,
}

impl FrameReceiver {
    /// Starts the threads for the link for frames. Without `delivery` frames are counted and
    /// dropped.
    pub(crate) fn start(
        (reader, writer): (LinkReader, LinkWriter),
        delivery: Option<Box<dyn FrameDelivery>>,
    ) -> io::Result<Self> {
        let (events, received) = sync_channel(QUEUED_EVENTS);
        start_reader("dst-frames", reader, events.clone(), FrameEvent::Message)?;
        let thread = thread::Builder::new()
            .name("dst-deliver".into())
            .spawn(move || {
                Deliverer {
                    writer,
                    delivery,
                    kept: Vec::new(),
                    kept_bytes: 0,
                    running: false,
                    account: FramesAccount::default(),
                }
                .run(&received)
            })?;
        Ok(Self { events, thread })
    }

    /// The guest runs here: delivers what was kept, and what arrives from now on.
    pub(crate) fn guest_runs(&self) {
        // The thread always receives; it has ended if this fails.
        let _ = self.events.send(FrameEvent::GuestRuns);
    }

    /// Ends the threads, and returns the counts of the frames. The link must have ended.
    pub(crate) fn finish(self) -> Option<FramesAccount> {
        drop(self.events);
        self.thread.join().ok()
    }
}

struct Deliverer {
    writer: LinkWriter,
    delivery: Option<Box<dyn FrameDelivery>>,
    /// Frames that arrived before the guest ran.
    kept: Vec<KeptFrame>,
    kept_bytes: usize,
    running: bool,
    account: FramesAccount,
}

impl Deliverer {
    fn run(mut self, events: &Receiver<FrameEvent>) -> FramesAccount {
        let mut ended = false;
        loop {
            let event = match events.recv_timeout(OBSERVE_INTERVAL) {
                Ok(event) => event,
                Err(RecvTimeoutError::Timeout) => {
                    self.observe();
                    continue;
                }
                Err(RecvTimeoutError::Disconnected) => break,
            };
            match event {
                FrameEvent::Message(Ok(ToDestination::Frames { card, frames })) if !ended => {
                    for frame in frames {
                        self.receive(card, frame);
                    }
                }
                FrameEvent::Message(Ok(ToDestination::FramesEnd)) if !ended => ended = true,
                FrameEvent::Message(Ok(other)) => {
                    tracing::warn!(?other, "unexpected message on the link for frames");
                    ended = true;
                }
                FrameEvent::Message(Err(error)) => {
                    tracing::debug!(error = %Report::new(&error), "the link for frames has ended");
                    continue;
                }
                FrameEvent::GuestRuns => {
                    self.running = true;
                    self.observe();
                    for frame in std::mem::take(&mut self.kept) {
                        self.deliver(&frame);
                    }
                }
            }
            if ended && self.running {
                self.answer();
                break;
            }
        }
        self.account.dropped += self.kept.len() as u64;
        self.account
    }

    fn observe(&mut self) {
        if let Some(networks) = &mut self.delivery {
            networks.observe();
        }
    }

    fn receive(&mut self, card: [u8; 6], frame: NetworkFrame) {
        self.account.kept += 1;
        let frame = KeptFrame { card, frame };
        if self.running {
            self.deliver(&frame);
            return;
        }
        let bytes = frame.frame.bytes.len() + FRAME_OVERHEAD;
        if self.kept_bytes + bytes > MAX_KEPT_BYTES {
            self.account.dropped += 1;
        } else {
            self.kept_bytes += bytes;
            self.kept.push(frame);
        }
    }

    fn deliver(&mut self, frame: &KeptFrame) {
        let delivered = self
            .delivery
            .as_mut()
            .map(|networks| networks.deliver(frame));
        match delivered {
            Some(Ok(())) => self.account.delivered += 1,
            Some(Err(error)) => {
                self.account.dropped += 1;
                tracing::debug!(error = %Report::new(&error), "a frame for the guest was not delivered");
            }
            None => self.account.dropped += 1,
        }
    }

    fn answer(&mut self) {
        let FramesAccount {
            delivered, dropped, ..
        } = self.account;
        let answer = ToSource::FramesDelivered { delivered, dropped };
        if let Err(error) = self.writer.control(&answer) {
            tracing::debug!(error = %Report::new(&error), "reporting how many frames were delivered");
        }
        tracing::debug!(account = ?self.account, "frames that arrived for the guest");
    }
}
