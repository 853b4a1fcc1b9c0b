//! The sending end of a background link: paced, bounded, acknowledged.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use hikkoshi_pages::{PAGE_BYTES, PageRange};
use hikkoshi_wire::{Frame, HEADER_LEN};

use super::window::{Wait, Window};
use crate::TICK;
use crate::{LinkError, LinkReader, LinkWriter, Pace, UrgentActivity};
use hikkoshi_linux::Cancel;

/// Frames of no more content than this are collected…
const SMALL: usize = 64 << 10;

/// … until there are so many bytes of them: scattered dirty pages cost a
/// system call and a packet for each batch, not for each page.
const BATCH: usize = 256 << 10;

/// How often the kernel is asked how the connection fares.
const LOOK: Duration = Duration::from_micros(50);

/// The longest sleep before it is asked again.
const NAP: Duration = Duration::from_millis(1);

/// Pushes pages that nobody asked for (yet).
///
/// One thread owns it and does everything: it writes pages, reads the peer's
/// acknowledgements, asks the kernel how the connection fares, and waits while
/// the window (`window.rs`) is full or the [`Pace`], which all links share, says so.
#[derive(Debug)]
pub struct BackgroundSender {
    writer: LinkWriter,
    reader: LinkReader,
    window: Window,
    pace: Option<Arc<Pace>>,
    /// In post-copy: whether somebody waits for a page.
    urgency: Option<UrgentActivity>,
    /// In pre-copy: how long the peer may acknowledge nothing, and since when
    /// it has not.
    patience: Option<Duration>,
    heard: Instant,
    /// When the kernel was asked last, and the pace it was told.
    looked: Instant,
    told: Option<f64>,
    /// Whole frames that have not been sent yet.
    batch: Vec<u8>,
}

impl BackgroundSender {
    /// A sender on a new link that keeps to `pace` together with the others.
    pub fn new(reader: LinkReader, writer: LinkWriter, pace: Option<Arc<Pace>>) -> Self {
        let now = Instant::now();
        Self {
            writer,
            reader,
            window: Window::new(now),
            pace,
            urgency: None,
            patience: None,
            heard: now,
            looked: now,
            told: None,
            batch: Vec::with_capacity(BATCH + SMALL + HEADER_LEN),
        }
    }

    /// From now on `stop` ends a blocked write; until now it was what the
    /// link's two ends were made with.
    pub fn set_stop(&mut self, stop: &Cancel) {
        self.writer.set_stop(stop.clone());
        self.reader.set_stop(stop.clone());
    }

    /// A peer that for so long takes nothing, or acknowledges nothing of what
    /// it was sent, is too slow ([`LinkError::TooSlow`]); until
    /// [`yield_to_urgent`](Self::yield_to_urgent) is called.
    pub fn set_patience(&mut self, patience: Option<Duration>) {
        self.patience = patience;
        self.writer.set_patience(patience);
    }

    /// From now on urgent pages share the network with this link, one of
    /// `links`; `urgency` tells all of them when somebody waits for one.
    pub fn yield_to_urgent(&mut self, urgency: UrgentActivity, links: u64) {
        self.window.bound(urgency.zero(), links, Instant::now());
        self.writer.send_apart();
        // There is nothing to go back to.
        self.set_patience(None);
        self.urgency = Some(urgency);
    }

    /// How many pages the next piece should have: the longer they take on the
    /// line, the fewer.
    pub fn piece_pages(&self) -> u64 {
        self.window.piece() / PAGE_BYTES
    }

    /// Bytes sent so far, headers and what is collected included.
    pub fn sent(&self) -> u64 {
        self.window.sent() + self.batch.len() as u64
    }

    /// Sends the content of `range` when there is room for it; a small one
    /// with the next ones, or at the next [`flush`](Self::flush).
    ///
    /// # Errors
    /// The link's failure; [`LinkError::Stopped`] when `stop` is set before
    /// there is room.
    pub fn pages(
        &mut self,
        range: PageRange,
        content: &[u8],
        stop: &Cancel,
    ) -> Result<(), LinkError> {
        if content.len() <= SMALL {
            return self.collect(Frame::Pages { range }, content, stop);
        }
        self.flush(stop)?;
        self.make_room((HEADER_LEN + content.len()) as u64, stop)?;
        self.writer.pages(range, content)?;
        self.book();
        Ok(())
    }

    /// Says that `range` holds only zeros.
    ///
    /// # Errors
    /// As [`pages`](Self::pages).
    pub fn zeros(&mut self, range: PageRange, stop: &Cancel) -> Result<(), LinkError> {
        self.collect(Frame::Zeros { range }, &[], stop)
    }

    /// Puts a frame into the batch, and sends that when it is large enough.
    fn collect(&mut self, frame: Frame, content: &[u8], stop: &Cancel) -> Result<(), LinkError> {
        self.batch.extend_from_slice(&frame.encode());
        self.batch.extend_from_slice(content);
        if self.batch.len() < BATCH {
            return check(stop);
        }
        self.flush(stop)
    }

    /// Sends what was collected: small frames wait for each other otherwise.
    ///
    /// # Errors
    /// As [`pages`](Self::pages).
    pub fn flush(&mut self, stop: &Cancel) -> Result<(), LinkError> {
        if self.batch.is_empty() {
            return Ok(());
        }
        // In post-copy room was made before the pages were claimed: the guest
        // may be waiting for them by now.
        if self.urgency.is_none() {
            self.make_room(self.batch.len() as u64, stop)?;
        }
        self.writer.frames(&self.batch)?;
        self.batch.clear();
        self.book();
        Ok(())
    }

    /// Waits until the peer has applied everything that was sent.
    ///
    /// # Errors
    /// The link's failure; [`LinkError::Stopped`] when `stop` is set before.
    pub fn drain(&mut self, stop: &Cancel) -> Result<(), LinkError> {
        self.flush(stop)?;
        while self.window.in_flight() > 0 {
            self.read_acks(TICK)?;
            check(stop)?;
        }
        Ok(())
    }

    /// Accounts for what the writer has sent since the last call.
    fn book(&mut self) {
        let now = Instant::now();
        let bytes = self.writer.sent() - self.window.sent();
        self.window.on_sent(bytes, now);
        if let Some(pace) = &self.pace {
            pace.spend(bytes, now);
        }
    }

    /// Waits until the pace allows more. Before sending, never after it: the
    /// last bytes of all are not waited for.
    fn keep_pace(&mut self, stop: &Cancel) -> Result<(), LinkError> {
        while let Some(pace) = &self.pace {
            let left = pace.wait(Instant::now());
            if left.is_zero() {
                break;
            }
            thread::sleep(left.min(TICK));
            self.read_acks(Duration::ZERO)?;
            check(stop)?;
        }
        Ok(())
    }

    /// Waits until `bytes` may leave.
    ///
    /// # Errors
    /// As [`pages`](Self::pages).
    pub fn make_room(&mut self, bytes: u64, stop: &Cancel) -> Result<(), LinkError> {
        check(stop)?;
        self.read_acks(Duration::ZERO)?;
        self.keep_pace(stop)?;
        loop {
            self.look();
            match self.window.wait(bytes) {
                Wait::Not => return Ok(()),
                Wait::Acknowledgement => self.read_acks(TICK)?,
                Wait::For(time) => {
                    thread::sleep(time.min(NAP));
                    self.read_acks(Duration::ZERO)?;
                }
            }
            check(stop)?;
        }
    }

    /// In post-copy: takes in what the kernel knows, and tells it the pace.
    fn look(&mut self) {
        let Some(urgency) = &self.urgency else {
            return;
        };
        let now = Instant::now();
        if now - self.looked < LOOK {
            return;
        }
        self.looked = now;
        self.window.press(urgency.is_pressing(now));
        let Some(info) = self.writer.stream().tcp_info() else {
            self.window.go_blind();
            return;
        };
        let acked = info.acked.saturating_sub(self.writer.overhead());
        self.window.look(acked, info.round_trip.as_secs_f64(), now);
        let pace = self.window.pace();
        if pace != self.told {
            self.told = pace;
            self.writer.stream().set_pace(pace);
        }
    }

    /// Reads the acknowledgements that are there, waiting for the first one
    /// no longer than `wait`.
    fn read_acks(&mut self, wait: Duration) -> Result<(), LinkError> {
        if self.window.in_flight() == 0 {
            self.heard = Instant::now();
        }
        // A part of an acknowledgement is none.
        let deadline = self.patience.map(|most| self.heard + most);
        self.reader.set_deadline(deadline);
        let mut wait = wait;
        while self.reader.is_ready(wait)? {
            wait = Duration::ZERO;
            let before = self.window.in_flight();
            match self.reader.frame()? {
                // Of something new: there are no more of them than bytes, and
                // whoever repeats itself does not keep this thread busy.
                Frame::Ack { bytes }
                    if self.window.on_ack(bytes) && self.window.in_flight() < before =>
                {
                    self.heard = Instant::now();
                }
                other => {
                    return Err(LinkError::Protocol(format!(
                        "{other:?} on a background link, {} bytes sent",
                        self.window.sent()
                    )));
                }
            }
        }
        let late = self
            .patience
            .is_some_and(|most| self.heard.elapsed() > most);
        if late {
            return Err(LinkError::TooSlow);
        }
        Ok(())
    }
}

fn check(stop: &Cancel) -> Result<(), LinkError> {
    if stop.is_cancelled() {
        Err(LinkError::Stopped)
    } else {
        Ok(())
    }
}
