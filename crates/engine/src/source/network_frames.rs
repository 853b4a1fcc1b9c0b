//! Sends the frames that arrive for the guest to the destination.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use error_reporter::Report;
use hikkoshi_link::{LinkError, LinkReader, LinkWriter, Stream};
use hikkoshi_linux::sandbox_thread;
use hikkoshi_wire::{MAX_NETWORK_FRAMES, ToDestination, ToSource};

use crate::guest_error::GuestError;
use crate::network_frames::{FrameCapture, KeptFrame};
use crate::report::FramesAccount;

/// The most frames, and bytes in them, that are sent. More are dropped: they would delay the
/// guest's pages. 4 MiB take 34 ms at 1 Gbit/s.
const MAX_SENT: u64 = 8192;
const MAX_SENT_BYTES: u64 = 4 << 20;

/// The bytes after which a message is sent. Small, so that pages get between the messages.
const MESSAGE_BYTES: usize = 32 << 10;

/// How long frames are forwarded after the guest runs at the destination: switches have then
/// learned where it is.
const MAX_FORWARDING: Duration = Duration::from_millis(250);

/// Forwarding ends earlier after so much time without a frame. The guest has been announced when
/// it begins; on a busy host the announcement, or a frame before it, is still on its way.
const QUIET: Duration = Duration::from_millis(50);

/// The most frames that are taken after that: those that had arrived until then, which a slow host
/// or line has not let pass yet. More than a capture keeps.
const MAX_LATE: u32 = 32 << 10;

/// How often the thread checks whether forwarding is over.
const CHECK_INTERVAL: Duration = Duration::from_millis(5);

/// How long the end of the migration waits for the destination's answer. A guest that waits for
/// pages reads its frames slowly.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// A message from the main thread to the thread that forwards.
#[derive(Debug)]
enum Step {
    /// The guest runs at the destination.
    GuestResumed,
}

/// The frames that arrive for the guest, from the pause to the end of the migration.
#[derive(Debug)]
pub(crate) struct FrameForwarder {
    stream: Arc<Stream>,
    state: State,
}

/// What is needed to forward frames.
struct Parts {
    capture: Box<dyn FrameCapture>,
    reader: LinkReader,
    writer: LinkWriter,
}

enum State {
    /// The guest runs here, or may run here again.
    Capturing(Box<Parts>),
    /// From *Commit* on.
    Forwarding(SyncSender<Step>, JoinHandle<FramesAccount>),
    /// Given up.
    Off,
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Capturing(_) => "Capturing",
            Self::Forwarding(..) => "Forwarding",
            Self::Off => "Off",
        })
    }
}

impl FrameForwarder {
    /// Forwards on the link for frames.
    pub(crate) fn new(
        capture: Box<dyn FrameCapture>,
        stream: Arc<Stream>,
        (reader, writer): (LinkReader, LinkWriter),
    ) -> Self {
        let parts = Parts {
            capture,
            reader,
            writer,
        };
        Self {
            stream,
            state: State::Capturing(Box::new(parts)),
        }
    }

    /// The guest is to be paused soon.
    pub(crate) fn prepare(&mut self) {
        self.capture(|capture| capture.prepare());
    }

    /// Starts to keep frames; the guest is about to be paused.
    pub(crate) fn start(&mut self) {
        self.capture(|capture| capture.start());
    }

    fn capture(&mut self, step: impl FnOnce(&mut dyn FrameCapture) -> Result<(), GuestError>) {
        if let State::Capturing(parts) = &mut self.state
            && let Err(error) = step(&mut *parts.capture)
        {
            tracing::warn!(error = %Report::new(&error), "keeping the frames that arrive for the guest");
            self.state = State::Off;
        }
    }

    /// *Commit* was sent for a guest that was paused at `paused`: sends what it did not get.
    pub(crate) fn handed_over(&mut self, paused: Instant) {
        let State::Capturing(parts) = std::mem::replace(&mut self.state, State::Off) else {
            return;
        };
        let (sender, steps) = sync_channel(1);
        let spawned = thread::Builder::new()
            .name("src-frames".into())
            .spawn(move || parts.forward(paused, &steps));
        match spawned {
            Ok(thread) => self.state = State::Forwarding(sender, thread),
            Err(error) => {
                tracing::warn!(error = %Report::new(&error), "starting a thread for the guest's frames");
            }
        }
    }

    /// The guest runs at the destination: what arrives here from now on is on its way while
    /// switches learn where the guest is.
    pub(crate) fn guest_resumed(&self) {
        if let State::Forwarding(steps, _) = &self.state {
            let _ = steps.try_send(Step::GuestResumed);
        }
    }

    /// Waits until forwarding is over; `None` if nothing was forwarded.
    pub(crate) fn finish(self) -> Option<FramesAccount> {
        let State::Forwarding(steps, thread) = self.state else {
            return None;
        };
        // Without another step, if the guest was not resumed in this session.
        drop(steps);
        let deadline = Instant::now() + MAX_FORWARDING + ANSWER_TIMEOUT;
        while !thread.is_finished() && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(1));
        }
        if !thread.is_finished() {
            tracing::warn!("the destination takes too long to deliver the guest's frames");
            self.stream.shutdown();
        }
        thread.join().ok()
    }
}

impl Parts {
    fn forward(mut self, paused: Instant, steps: &Receiver<Step>) -> FramesAccount {
        let mut account = FramesAccount::default();
        let outcome = self.send_frames(paused, steps, &mut account);
        account.dropped += self.capture.dropped();
        let answer = outcome.and_then(|()| {
            self.writer.control(&ToDestination::FramesEnd)?;
            // From here on this thread only reads from the peer.
            sandbox_thread();
            self.reader
                .set_deadline(Some(Instant::now() + ANSWER_TIMEOUT));
            self.reader.control()
        });
        match answer {
            Ok(ToSource::FramesDelivered { delivered, dropped }) => {
                account.delivered = delivered;
                account.dropped = account.dropped.saturating_add(dropped);
            }
            Ok(other) => {
                tracing::warn!(?other, "unexpected message on the link for frames");
            }
            Err(error) => {
                tracing::warn!(error = %Report::new(&error), "sending the frames that arrived for the guest");
            }
        }
        tracing::debug!(?account, "frames that arrived for the guest");
        account
    }

    fn send_frames(
        &mut self,
        paused: Instant,
        steps: &Receiver<Step>,
        account: &mut FramesAccount,
    ) -> Result<(), LinkError> {
        let failed = |error| {
            tracing::warn!(error = %Report::new(&error), "reading the frames that arrived for the guest");
        };
        if let Err(error) = self.capture.handed_over(paused) {
            failed(error);
            return Ok(());
        }
        let mut batch = Batch::default();
        let mut end = End::default();
        let mut bytes = 0u64;
        loop {
            let looked = Instant::now();
            // What is there goes out before this thread waits.
            let wait = if batch.frames.is_empty() {
                CHECK_INTERVAL
            } else {
                Duration::ZERO
            };
            let next = match self.capture.next(wait) {
                Ok(next) => next,
                Err(error) => {
                    failed(error);
                    return self.flush(&mut batch);
                }
            };
            let Some(frame) = next else {
                self.flush(&mut batch)?;
                if end.reached(looked, steps) {
                    return Ok(());
                }
                continue;
            };
            end.frame_arrived();
            bytes = bytes.saturating_add(frame.frame.bytes.len() as u64);
            if account.kept >= MAX_SENT || bytes > MAX_SENT_BYTES {
                account.dropped += 1;
            } else {
                account.kept += 1;
                if batch.is_full_with(&frame) {
                    self.flush(&mut batch)?;
                }
                batch.add(frame);
            }
            if end.reached_with_frame(looked, steps) {
                return self.flush(&mut batch);
            }
        }
    }

    fn flush(&mut self, batch: &mut Batch) -> Result<(), LinkError> {
        match batch.take() {
            Some(message) => self.writer.control(&message),
            None => Ok(()),
        }
    }
}

/// When forwarding is over.
#[derive(Debug)]
struct End {
    /// When the guest was resumed at the destination.
    resumed: Option<Instant>,
    last_frame: Instant,
    /// The main thread waits for the end.
    finishing: bool,
    /// Frames that were taken since it is over.
    late: u32,
}

impl Default for End {
    fn default() -> Self {
        Self {
            resumed: None,
            last_frame: Instant::now(),
            finishing: false,
            late: 0,
        }
    }
}

impl End {
    fn frame_arrived(&mut self) {
        self.last_frame = Instant::now();
    }

    /// Whether the end is reached after a look that has found a frame: there may be others that had
    /// arrived before forwarding was over.
    fn reached_with_frame(&mut self, looked: Instant, steps: &Receiver<Step>) -> bool {
        if self.reached(looked, steps) {
            self.late += 1;
        }
        self.late > MAX_LATE
    }

    /// `looked`: the time before the last look for a frame. Frames that arrived while this thread
    /// did not run are found by the next look.
    fn reached(&mut self, looked: Instant, steps: &Receiver<Step>) -> bool {
        match steps.try_recv() {
            Ok(Step::GuestResumed) => self.resumed = Some(Instant::now()),
            Err(TryRecvError::Disconnected) => self.finishing = true,
            Err(TryRecvError::Empty) => {}
        }
        self.is_over(looked)
    }

    fn is_over(&self, looked: Instant) -> bool {
        match self.resumed {
            Some(resumed) => {
                let running = looked.saturating_duration_since(resumed);
                let quiet = running.min(looked.saturating_duration_since(self.last_frame));
                running > MAX_FORWARDING || quiet > QUIET
            }
            // The session ends without a guest that runs there.
            None => self.finishing,
        }
    }
}

/// Frames for one network card that go into one message.
#[derive(Debug, Default)]
struct Batch {
    frames: Vec<KeptFrame>,
    bytes: usize,
}

impl Batch {
    /// Whether `frame` needs another message.
    fn is_full_with(&self, frame: &KeptFrame) -> bool {
        self.frames.first().is_some_and(|first| {
            first.card != frame.card
                || self.frames.len() == MAX_NETWORK_FRAMES
                || self.bytes + frame.frame.bytes.len() > MESSAGE_BYTES
        })
    }

    fn add(&mut self, frame: KeptFrame) {
        self.bytes += frame.frame.bytes.len();
        self.frames.push(frame);
    }

    fn take(&mut self) -> Option<ToDestination> {
        let card = self.frames.first()?.card;
        self.bytes = 0;
        let frames = self.frames.drain(..).map(|kept| kept.frame).collect();
        Some(ToDestination::Frames { card, frames })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOMENT: Duration = Duration::from_millis(1);

    #[test]
    fn forwarding_ends_after_50_ms_without_a_frame_and_after_250_ms_at_the_latest() {
        let resumed = Instant::now();
        let over = |last_frame: u64, looked: Duration| {
            let end = End {
                resumed: Some(resumed),
                last_frame: resumed + Duration::from_millis(last_frame),
                ..End::default()
            };
            end.is_over(resumed + looked)
        };
        let (quiet, most) = (Duration::from_millis(50), Duration::from_millis(250));
        assert!(!over(0, quiet));
        assert!(over(0, quiet + MOMENT));
        assert!(!over(10, quiet + MOMENT), "a frame came later");
        assert!(over(10, quiet + 11 * MOMENT));
        assert!(!over(245, most), "frames keep coming");
        assert!(over(245, most + MOMENT));
    }

    #[test]
    fn a_silence_before_the_guest_runs_does_not_count() {
        let last_frame = Instant::now();
        let looked = last_frame + 2 * QUIET;
        let end = |resumed| End {
            resumed,
            last_frame,
            ..End::default()
        };
        assert!(!end(None).is_over(looked));
        assert!(!end(Some(looked)).is_over(looked));
        assert!(
            !end(Some(looked + MOMENT)).is_over(looked),
            "seen after the look"
        );
    }

    #[test]
    fn frames_that_have_arrived_are_taken_after_the_time_and_not_without_end() {
        let (_sender, steps) = sync_channel(1);
        let resumed = Instant::now();
        let mut end = End {
            resumed: Some(resumed),
            ..End::default()
        };
        let looked = resumed + MAX_FORWARDING + MOMENT;
        assert!((0..MAX_LATE).all(|_| !end.reached_with_frame(looked, &steps)));
        assert!(end.reached_with_frame(looked, &steps));
        assert!(end.reached(looked, &steps), "nothing was found");
    }
}
