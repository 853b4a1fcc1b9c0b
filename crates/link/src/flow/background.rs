//! The sender of a background link: paced, bounded, acknowledged.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use hikkoshi_pages::{PAGE_BYTES, PageRange};
use hikkoshi_wire::{Frame, HEADER_LEN, message_name};

use crate::TICK;
use crate::compression::MeasuredLink;
use crate::flow::bandwidth::PresentLimit;
use crate::flow::window::{Wait, Window};
use crate::{
    Bandwidth, Compression, CompressionCounters, LinkError, LinkReader, LinkWriter, RateLimit,
    UrgentActivity,
};
use hikkoshi_linux::CancelFlag;

/// Frames with less content than this are collected in a batch…
const SMALL: usize = 64 << 10;

/// … in post-copy, where a batch is sent after each piece: what is copied into it costs less than
/// another write.
const SMALL_IN_POSTCOPY: usize = 16 << 10;

/// … until the batch has this many bytes: scattered dirty pages cost a system call and a packet for
/// each batch, not for each page.
const BATCH: usize = 256 << 10;

/// The interval between two reads of the kernel's TCP_INFO.
const SAMPLE_INTERVAL: Duration = Duration::from_micros(50);

/// In post-copy: the interval between two reads of the peer's acknowledgements, while nothing waits
/// for them.
const ACKS_INTERVAL: Duration = Duration::from_millis(5);

/// In pre-copy with a limit ([`Bandwidth`]): how much faster than the limit the kernel may send
/// what it was given. Frames of up to 1 MiB would be sent at the line's rate otherwise, and what
/// others send meanwhile, such as pages that another guest waits for, would queue behind a whole
/// frame.
const LIMIT_PACE_GAIN: f64 = 1.25;

/// The longest sleep between two reads.
const MAX_SLEEP: Duration = Duration::from_millis(1);

/// Sends pages that the destination has not requested.
///
/// One thread owns a sender and does everything: it writes pages, reads the peer's acknowledgements
/// and the kernel's TCP_INFO, and waits while the window (`window.rs`) is full or the [`Bandwidth`]
/// that all links share requires it.
#[derive(Debug)]
pub struct BackgroundSender {
    writer: LinkWriter,
    reader: LinkReader,
    window: Window,
    rate_limit: PresentLimit,
    /// Whether `rate_limit` does not count at present.
    unlimited: bool,
    /// In post-copy: whether the guest waits for a page.
    urgent_activity: Option<UrgentActivity>,
    /// In pre-copy: how long the peer may acknowledge nothing, and the time of the last progress.
    progress_timeout: Option<Duration>,
    last_progress: Instant,
    /// When acknowledgements were last read.
    last_acks: Instant,
    /// When TCP_INFO was read last, and the pace that was set in the kernel.
    last_sample: Instant,
    kernel_pace: Option<f64>,
    /// Complete frames that have not been sent.
    batch: Vec<u8>,
    /// Where pages are compressed; then also how long writing and waiting to write took since that
    /// was measured last, and when bytes were last written.
    compression: Option<MeasuredLink>,
    writing: Duration,
    last_written: Instant,
}

impl BackgroundSender {
    /// A sender on a new link; `bandwidth` is shared with the other links.
    pub fn new(reader: LinkReader, writer: LinkWriter, bandwidth: &Bandwidth) -> Self {
        let now = Instant::now();
        Self {
            writer,
            reader,
            window: Window::new(now),
            rate_limit: bandwidth.present_limit(),
            unlimited: false,
            urgent_activity: None,
            progress_timeout: None,
            last_progress: now,
            last_acks: now,
            last_sample: now,
            kernel_pace: None,
            batch: Vec::with_capacity(BATCH + SMALL + HEADER_LEN),
            compression: None,
            writing: Duration::ZERO,
            last_written: now,
        }
    }

    /// Compresses pages from now on, as `compression` says: the peer must have the feature. What is
    /// compressed is added to `counters`.
    pub fn set_compression(
        &mut self,
        compression: Compression,
        counters: &Arc<CompressionCounters>,
    ) {
        self.compression = MeasuredLink::new(compression, counters);
    }

    /// There is nothing to send or to compress for now: the time until the next pages does not say
    /// how fast this link is.
    pub fn idle(&mut self) {
        self.writing = Duration::ZERO;
        if let Some(compression) = &mut self.compression {
            compression.idle(self.window.sent());
        }
    }

    /// Replaces the stop signal of the link's reader and writer, which ends a blocked write.
    pub fn set_stop(&mut self, stop: &CancelFlag) {
        self.writer.set_stop(stop.clone());
        self.reader.set_stop(stop.clone());
    }

    /// Sets how long the peer may accept no data, or acknowledge none, before the link fails with
    /// [`LinkError::TooSlow`]. [`yield_to_urgent`](Self::yield_to_urgent) removes the limit.
    pub fn set_progress_timeout(&mut self, progress_timeout: Option<Duration>) {
        self.progress_timeout = progress_timeout;
        self.writer.set_progress_timeout(progress_timeout);
    }

    /// Whether what is sent from now on is not limited by the [`Bandwidth`]: the guest is paused
    /// until it has arrived.
    pub fn set_unlimited(&mut self, unlimited: bool) {
        self.unlimited = unlimited;
    }

    /// Starts post-copy: urgent pages now share the network with this link, one of `links`.
    /// `urgent_activity` reports to all of them whether the guest waits for a page.
    pub fn yield_to_urgent(&mut self, urgent_activity: UrgentActivity, links: u64) {
        self.window
            .start_postcopy(urgent_activity.epoch(), links, Instant::now());
        self.writer.send_as_packets();
        // In post-copy a slow link must not end the migration: the guest cannot return to the
        // source.
        self.set_progress_timeout(None);
        self.urgent_activity = Some(urgent_activity);
    }

    /// How many pages the next piece should have: the slower the line, the fewer.
    pub fn piece_pages(&self) -> u64 {
        self.window.piece() / PAGE_BYTES
    }

    /// Bytes sent so far, including headers and the batch.
    pub fn sent(&self) -> u64 {
        self.window.sent() + self.batch.len() as u64
    }

    /// Bytes that the peer has applied so far, including headers.
    pub fn arrived(&self) -> u64 {
        self.window.sent() - self.window.in_flight()
    }

    /// Sends the content of `range` when the window has room. A small frame is sent with the next
    /// ones, or at the next [`flush`](Self::flush).
    ///
    /// # Errors
    /// The link's failure; [`LinkError::Stopped`] when `stop` is set before
    /// there is room.
    pub fn pages(
        &mut self,
        range: PageRange,
        content: &[u8],
        stop: &CancelFlag,
    ) -> Result<(), LinkError> {
        // A page that was claimed and waits for the compressor makes the guest wait for longer.
        let urgent = self.urgent_activity.as_ref();
        if urgent.is_some_and(|urgent| urgent.is_recent(Instant::now())) {
            let result = self.content(Frame::Pages { range }, content, stop);
            self.idle();
            return result;
        }
        // Taken out: the compressed bytes are in it.
        let Some(mut compression) = self.compression.take() else {
            return self.content(Frame::Pages { range }, content, stop);
        };
        let (frame, bytes) = match compression.compress(content) {
            Some((method, compressed)) => {
                let len = u32::try_from(compressed.len()).unwrap_or(u32::MAX);
                (Frame::Compressed { range, method, len }, compressed)
            }
            None => (Frame::Pages { range }, content),
        };
        let result = self.content(frame, bytes, stop);
        let writing = std::mem::take(&mut self.writing);
        let (sent, in_flight) = (self.window.sent(), self.window.in_flight());
        compression.on_written(sent, in_flight, writing, self.last_written);
        self.compression = Some(compression);
        result
    }

    /// Sends a frame with its payload.
    fn content(
        &mut self,
        frame: Frame,
        payload: &[u8],
        stop: &CancelFlag,
    ) -> Result<(), LinkError> {
        let small = match self.urgent_activity {
            Some(_) => SMALL_IN_POSTCOPY,
            None => SMALL,
        };
        if payload.len() < small {
            return self.collect(frame, payload, stop);
        }
        self.make_room_for(HEADER_LEN + payload.len(), stop)?;
        self.batch.extend_from_slice(&frame.encode());
        self.send(payload)
    }

    /// Reports that `range` contains only zeros.
    ///
    /// # Errors
    /// The errors of [`pages`](Self::pages).
    pub fn zeros(&mut self, range: PageRange, stop: &CancelFlag) -> Result<(), LinkError> {
        self.collect(Frame::Zeros { range }, &[], stop)
    }

    /// Adds a frame to the batch, and sends the batch when it is large enough.
    fn collect(
        &mut self,
        frame: Frame,
        content: &[u8],
        stop: &CancelFlag,
    ) -> Result<(), LinkError> {
        self.batch.extend_from_slice(&frame.encode());
        self.batch.extend_from_slice(content);
        if self.batch.len() < BATCH {
            return check(stop);
        }
        self.flush(stop)
    }

    /// Sends the batch: small frames wait for each other otherwise.
    ///
    /// # Errors
    /// The errors of [`pages`](Self::pages).
    pub fn flush(&mut self, stop: &CancelFlag) -> Result<(), LinkError> {
        if self.batch.is_empty() {
            return Ok(());
        }
        self.make_room_for(0, stop)?;
        self.send(&[])
    }

    /// Waits until the batch and `more` bytes may be sent. In post-copy the caller waited for room
    /// before it claimed the pages: the guest may already be waiting for them.
    fn make_room_for(&mut self, more: usize, stop: &CancelFlag) -> Result<(), LinkError> {
        match self.urgent_activity {
            Some(_) => Ok(()),
            None => self.make_room((self.batch.len() + more) as u64, stop),
        }
    }

    /// Sends the batch, which may end with the header of a frame with this `payload`.
    fn send(&mut self, payload: &[u8]) -> Result<(), LinkError> {
        let began = Instant::now();
        self.writer.frames_with_payload(&self.batch, payload)?;
        self.batch.clear();
        self.account(began);
        Ok(())
    }

    /// Waits until the peer has applied all sent data.
    ///
    /// # Errors
    /// The link's failure; [`LinkError::Stopped`] when `stop` is set before.
    pub fn drain(&mut self, stop: &CancelFlag) -> Result<(), LinkError> {
        self.flush(stop)?;
        while self.window.in_flight() > 0 {
            self.read_acks(TICK)?;
            check(stop)?;
        }
        self.idle();
        Ok(())
    }

    /// Waits for the peer's next acknowledgement, at most for a tick.
    ///
    /// # Errors
    /// The errors of [`drain`](Self::drain).
    pub fn await_acknowledgement(&mut self, stop: &CancelFlag) -> Result<(), LinkError> {
        self.read_acks(TICK)?;
        check(stop)
    }

    /// Accounts for the bytes that the writer has sent since the last call, from `began` on.
    fn account(&mut self, began: Instant) {
        let now = Instant::now();
        self.writing += now - began;
        self.last_written = now;
        let bytes = self.writer.sent() - self.window.sent();
        self.window.on_sent(bytes, now);
        if let Some(limit) = self.limit() {
            limit.spend(bytes, now);
        }
    }

    /// The limit at present.
    fn limit(&mut self) -> Option<&RateLimit> {
        self.rate_limit.get().filter(|_| !self.unlimited)
    }

    /// Waits until the rate limit allows more. This comes before sending, never after it: there is
    /// no wait after the last bytes.
    fn wait_for_rate_limit(&mut self, stop: &CancelFlag) -> Result<(), LinkError> {
        if self.urgent_activity.is_none() {
            let limit = self.limit().map(RateLimit::bytes_per_second);
            // The value is rounded, and `as` saturates.
            #[allow(clippy::cast_precision_loss)]
            self.set_pace(limit.map(|limit| limit as f64 * LIMIT_PACE_GAIN));
        }
        // A changed limit is used after a tick at most.
        while let Some(limit) = self.limit() {
            let left = limit.wait(Instant::now());
            if left.is_zero() {
                break;
            }
            thread::sleep(left.min(TICK));
            self.read_acks(Duration::ZERO)?;
            check(stop)?;
        }
        Ok(())
    }

    /// Waits until `bytes` may be sent.
    ///
    /// # Errors
    /// The errors of [`pages`](Self::pages).
    pub fn make_room(&mut self, bytes: u64, stop: &CancelFlag) -> Result<(), LinkError> {
        let began = Instant::now();
        let room = self.await_room(bytes, stop);
        self.writing += began.elapsed();
        room
    }

    fn await_room(&mut self, bytes: u64, stop: &CancelFlag) -> Result<(), LinkError> {
        check(stop)?;
        self.read_due_acks()?;
        self.wait_for_rate_limit(stop)?;
        loop {
            self.sample_tcp_info();
            match self.window.wait(bytes) {
                Wait::None => return Ok(()),
                Wait::Acknowledgement => self.read_acks(TICK)?,
                Wait::For(time) => {
                    thread::sleep(time.min(MAX_SLEEP));
                    self.read_due_acks()?;
                }
            }
            check(stop)?;
        }
    }

    /// Reads the acknowledgements that are there. In post-copy TCP_INFO says what has arrived, so
    /// they are read when the window is full without them, and now and then.
    fn read_due_acks(&mut self) -> Result<(), LinkError> {
        match self.urgent_activity.is_none() || self.last_acks.elapsed() > ACKS_INTERVAL {
            true => self.read_acks(Duration::ZERO),
            false => Ok(()),
        }
    }

    /// In post-copy: reads TCP_INFO into the window, and sets the kernel's pace.
    fn sample_tcp_info(&mut self) {
        let Some(urgent_activity) = &self.urgent_activity else {
            return;
        };
        let now = Instant::now();
        if now - self.last_sample < SAMPLE_INTERVAL {
            return;
        }
        self.last_sample = now;
        self.window.set_guest_waits(urgent_activity.is_recent(now));
        let Some(info) = self.writer.stream().tcp_info() else {
            self.window.set_no_tcp_info();
            return;
        };
        let acked = info.acked.saturating_sub(self.writer.overhead());
        self.window
            .on_sample(acked, info.round_trip.as_secs_f64(), now);
        self.set_pace(self.window.pace());
    }

    /// Sets the kernel's pace, in bytes a second.
    fn set_pace(&mut self, pace: Option<f64>) {
        if pace != self.kernel_pace {
            self.kernel_pace = pace;
            self.writer.stream().set_pace(pace);
        }
    }

    /// Reads all available acknowledgements, and waits up to `wait` for the first one.
    fn read_acks(&mut self, wait: Duration) -> Result<(), LinkError> {
        if self.window.in_flight() == 0 {
            self.last_progress = Instant::now();
        }
        // A partial acknowledgement does not count.
        let deadline = self.progress_timeout.map(|most| self.last_progress + most);
        self.reader.set_deadline(deadline);
        self.last_acks = Instant::now();
        let mut wait = wait;
        while self.reader.is_ready(wait)? {
            wait = Duration::ZERO;
            let before = self.window.in_flight();
            match self.reader.frame()? {
                // It must acknowledge new bytes: so their number is limited, and a peer that
                // repeats one does not keep this thread busy.
                Frame::Ack { bytes }
                    if self.window.on_ack(bytes) && self.window.in_flight() < before =>
                {
                    self.last_progress = Instant::now();
                }
                other => {
                    return Err(LinkError::Protocol(format!(
                        "{} on a background link, {} bytes sent",
                        message_name(&other),
                        self.window.sent()
                    )));
                }
            }
        }
        let late = self
            .progress_timeout
            .is_some_and(|most| self.last_progress.elapsed() > most);
        if late {
            return Err(LinkError::TooSlow);
        }
        Ok(())
    }
}

fn check(stop: &CancelFlag) -> Result<(), LinkError> {
    if stop.is_cancelled() {
        Err(LinkError::Stopped)
    } else {
        Ok(())
    }
}

#[cfg(test)]
#[path = "background_tests.rs"]
mod tests;
