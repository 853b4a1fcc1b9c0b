//! Compresses what one background link sends, and measures it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use hikkoshi_wire::CompressionMethod;

use crate::compression::choice::{CompressionChoice, Window};
use crate::compression::{Compression, CompressionCounters, Compressor};

/// What is compressed of a piece to measure a method: so many parts of it, each of so many bytes.
const PROBE_PARTS: usize = 4;
const PROBE_PART: usize = 16 << 10;

/// A window ends after this time…
const WINDOW: Duration = Duration::from_millis(25);

/// … or this many bytes of pages.
const WINDOW_CONTENT: u64 = 4 << 20;

/// The compression of one link. It belongs to the thread that sends on it.
#[derive(Debug)]
pub(crate) struct MeasuredLink {
    method: Method,
    compressor: Compressor,
    counters: Arc<CompressionCounters>,
}

#[derive(Debug)]
enum Method {
    Fixed(CompressionMethod),
    Chosen(Box<Measurement>),
}

#[derive(Debug)]
struct Measurement {
    choice: CompressionChoice,
    /// When the present window began. `None`: with the next piece.
    from: Option<Instant>,
    content: u64,
    written: u64,
    /// Bytes that the link has sent in total.
    sent: u64,
    compressing: Duration,
    writing: Duration,
}

impl MeasuredLink {
    /// The compression of a new link; `None` if there is none. What is compressed is added to
    /// `counters`.
    pub(crate) fn new(
        compression: Compression,
        counters: &Arc<CompressionCounters>,
    ) -> Option<Self> {
        let method = match compression {
            Compression::Off => return None,
            Compression::Always(method) => Method::Fixed(method),
            Compression::Auto => Method::Chosen(Box::new(Measurement {
                choice: CompressionChoice::new(),
                from: None,
                content: 0,
                written: 0,
                sent: 0,
                compressing: Duration::ZERO,
                writing: Duration::ZERO,
            })),
        };
        Some(Self {
            method,
            compressor: Compressor::new(),
            counters: Arc::clone(counters),
        })
    }

    /// The compressed content of some pages. `None`: they are to be sent as they are.
    pub(crate) fn compress(&mut self, content: &[u8]) -> Option<(CompressionMethod, &[u8])> {
        let method = match &mut self.method {
            Method::Fixed(method) => *method,
            Method::Chosen(measurement) => measurement.begin(content, &mut self.compressor)?,
        };
        let began = Instant::now();
        let compressed = self.compressor.compress(method, content);
        if let Method::Chosen(measurement) = &mut self.method {
            measurement.compressing += began.elapsed();
        }
        let compressed = compressed?;
        self.counters
            .add(method, content.len() as u64, compressed.len() as u64);
        Some((method, compressed))
    }

    /// `sent` bytes have been written in total, the last ones at `at`, and so many of them are in
    /// flight. Writing took so much more time since the last call, with the waits before.
    pub(crate) fn on_written(&mut self, sent: u64, in_flight: u64, writing: Duration, at: Instant) {
        if let Method::Chosen(measurement) = &mut self.method {
            measurement.on_written(sent, in_flight, writing, at);
        }
    }

    /// There is nothing to send for now: the time until the next piece does not count. `sent` bytes
    /// have been written.
    pub(crate) fn idle(&mut self, sent: u64) {
        if let Method::Chosen(measurement) = &mut self.method {
            measurement.sent = sent;
            measurement.restart(None);
        }
    }
}

impl Measurement {
    /// Measures another method if that is due. Returns the method for `content`.
    fn begin(&mut self, content: &[u8], compressor: &mut Compressor) -> Option<CompressionMethod> {
        if self.from.is_none() {
            self.restart(Some(Instant::now()));
        }
        self.content += content.len() as u64;
        if let Some(method) = self.choice.probe(content.len() as u64) {
            let began = Instant::now();
            let (mut probed, mut compressed) = (0, 0);
            let every = content.len().div_ceil(PROBE_PARTS).max(PROBE_PART);
            for piece in content.chunks(every) {
                let part = piece.get(..PROBE_PART).unwrap_or(piece);
                let smaller = compressor.compress(method, part);
                probed += part.len() as u64;
                compressed += smaller.map_or(part.len(), <[u8]>::len) as u64;
            }
            let took = began.elapsed();
            self.compressing += took;
            self.choice
                .on_probe(method, probed, compressed, took.as_secs_f64());
        }
        self.choice.method()
    }

    fn on_written(&mut self, sent: u64, in_flight: u64, writing: Duration, now: Instant) {
        self.writing += writing;
        self.written += sent - self.sent;
        self.sent = sent;
        let Some(from) = self.from else {
            return;
        };
        let total = now.saturating_duration_since(from);
        // Small frames are collected before they are written.
        if self.written == 0 || (total < WINDOW && self.content < WINDOW_CONTENT) {
            return;
        }
        let before = self.choice.method();
        self.choice.on_window(Window {
            content: self.content,
            written: self.written,
            total: total.as_secs_f64(),
            compressing: self.compressing.as_secs_f64(),
            writing: self.writing.as_secs_f64(),
            in_flight,
        });
        let now_used = self.choice.method();
        if now_used != before {
            tracing::debug!(
                ?before,
                ?now_used,
                sent,
                "the compression of a link changes"
            );
        }
        self.restart(Some(now));
    }

    fn restart(&mut self, from: Option<Instant>) {
        self.from = from;
        (self.content, self.written) = (0, 0);
        (self.compressing, self.writing) = (Duration::ZERO, Duration::ZERO);
    }
}
