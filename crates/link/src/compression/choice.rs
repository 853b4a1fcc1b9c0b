//! Decides whether a link compresses, and by which method.
//!
//! One thread reads pages, compresses them and writes them, while the kernel sends what was written
//! before. So a byte of pages takes as long as the slower of both:
//!
//! ```text
//! off:    max(work,            line)
//! method: max(work + compress, line × ratio)
//! ```
//!
//! `work` is what the thread does besides, `line` is the time that a byte takes on the line,
//! `compress` the time to compress a byte of pages, `ratio` the size of what comes out. All are
//! moving averages. `line` is known while the line limits: while the thread spends a good part of
//! its time waiting to write. Methods that are not in use are measured by compressing a part of a
//! piece now and then, and only while the line limits. If nothing is gained by that, it becomes
//! rarer.
//!
//! What looks like a slow line may be a slow destination, which compression makes slower. So the
//! predictions only begin a change: a method is left at once if it takes longer than the link was
//! before, and is not used for some time then. While a method limits, and not the line, the link
//! goes without it now and then, because the line may have become faster.

use hikkoshi_wire::CompressionMethod;

/// The weight of the newest window in an average, and of the newest probe.
const WEIGHT: f64 = 0.3;
const PROBE_WEIGHT: f64 = 0.5;

/// The line limits if writing takes at least this part of the time.
const LIMITS: f64 = 0.25;

/// … in so many windows in a row.
const CERTAIN: u32 = 3;

/// Compression begins if it is predicted to take at most this part of the time, another method is
/// used if it takes at most the second part of the time of the present one, and compression ends if
/// it does not save as much as the third one says.
const BEGIN: f64 = 0.75;
const BETTER: f64 = 0.9;
const STAY: f64 = 0.95;

/// Bytes of pages between two probes: at least, and at most when they show no gain. A guest's
/// memory is not the same everywhere, and a probe sees little of it.
const PROBE_EVERY: (u64, u64) = (2 << 20, 16 << 20);

/// The windows in a row of which each is taken as it is, and not averaged: when the line begins to
/// be the limit, buffers have just become full.
const JUST_FULL: u32 = 2;

/// Bytes that kernel and peer may buffer: so many are written without waiting after a change to
/// more bytes a second.
const BUFFERED: u64 = 16 << 20;

/// If compression has made the link slower within this time, it is not used for a pause: in seconds
/// of sending.
const AT_ONCE: f64 = 4.0;

/// For how long a method is not used that made the link slower, in seconds of sending: at first,
/// and at most when that was in vain.
const PAUSE: (f64, f64) = (2.0, 64.0);

/// How long a method is used before the line is tried without it, in seconds of sending, at first;
/// at most as long as the longest pause. A trial fills the buffers with what is not compressed: at
/// 1 Gbit/s it takes about 0.4 s.
const TRIAL_AFTER: f64 = 8.0;

/// What was sent in a short time.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Window {
    /// Bytes of pages, and bytes written.
    pub(crate) content: u64,
    pub(crate) written: u64,
    /// How long it took, in seconds; of that compressing, and writing or waiting to write.
    pub(crate) total: f64,
    pub(crate) compressing: f64,
    pub(crate) writing: f64,
    /// Bytes that have been written and not been applied at the end.
    pub(crate) in_flight: u64,
}

/// What is known of a method.
#[derive(Debug, Clone, Copy, Default)]
struct Measured {
    /// The size of a compressed byte, and the seconds to compress it. `None`: not measured yet.
    ratio: Option<f64>,
    compress: f64,
    /// The seconds that a byte of pages took when the method was used last.
    taken: Option<f64>,
    /// Not used before this time, and for how long then.
    paused_until: f64,
    pause: f64,
}

/// What the line has carried in the newest windows. What buffers have taken is not among it.
#[derive(Debug, Clone, Copy, Default)]
struct Carried {
    windows: u32,
    seconds: f64,
    bytes: f64,
    written: f64,
}

impl Carried {
    /// Windows that say something: acknowledgements come in lumps, and threads wait for processors.
    const ENOUGH: u32 = 10;

    fn add(&mut self, seconds: f64, bytes: u64, written: f64) {
        let older = 1.0 - 1.0 / f64::from(Self::ENOUGH);
        self.windows += 1;
        self.seconds = self.seconds * older + seconds;
        self.bytes = self.bytes * older + float(bytes);
        self.written = self.written * older + written;
    }

    /// A byte takes at most so many seconds on the line.
    fn line(&self) -> Option<f64> {
        let is_known = self.windows >= Self::ENOUGH && self.bytes > 0.0;
        is_known.then(|| self.seconds / self.bytes)
    }

    /// Whether it carries what is written: buffers do not fill.
    fn keeps_up(&self) -> bool {
        self.windows >= Self::ENOUGH && self.bytes >= self.written * 0.9
    }
}

/// The choice of one link.
#[derive(Debug)]
pub(crate) struct CompressionChoice {
    present: Option<CompressionMethod>,
    /// When the link began to compress, and when the present choice was made. All times are seconds
    /// of sending.
    begun: f64,
    since: f64,
    now: f64,
    /// In seconds a byte; `line` is unknown until it was the limit.
    work: f64,
    line: Option<f64>,
    limits: bool,
    /// Windows in which that has not changed.
    in_a_row: u32,
    methods: [Measured; 2],
    /// The seconds that a byte took without compression, when that was the choice last.
    plain: Option<f64>,
    /// Bytes written and applied so far, and written at the last change. Windows count again when
    /// these have been applied before them, and if buffers were empty, when so many more are
    /// written or the line limits.
    written: u64,
    applied: u64,
    changed_at: u64,
    settled: bool,
    carried: Carried,
    filling: u64,
    /// Bytes of pages until the next probe.
    to_probe: u64,
    probe_every: u64,
    probed: usize,
    /// How long a method is used before the link goes without it for a trial, and whether it does.
    trial_after: f64,
    on_trial: bool,
}

impl CompressionChoice {
    /// A new link: it does not compress.
    pub(crate) fn new() -> Self {
        let measured = Measured {
            pause: PAUSE.0,
            ..Measured::default()
        };
        Self {
            present: None,
            begun: 0.0,
            since: 0.0,
            now: 0.0,
            work: 0.0,
            line: None,
            limits: false,
            in_a_row: 0,
            methods: [measured; 2],
            plain: None,
            written: 0,
            applied: 0,
            changed_at: 0,
            settled: true,
            carried: Carried::default(),
            filling: 0,
            to_probe: 0,
            probe_every: PROBE_EVERY.0,
            probed: 0,
            trial_after: TRIAL_AFTER,
            on_trial: false,
        }
    }

    /// The method in use.
    pub(crate) fn method(&self) -> Option<CompressionMethod> {
        self.present
    }

    /// The method to measure with the next piece, of so many bytes.
    pub(crate) fn probe(&mut self, bytes: u64) -> Option<CompressionMethod> {
        self.to_probe = self.to_probe.saturating_sub(bytes);
        if self.to_probe > 0 || !self.limits {
            return None;
        }
        self.to_probe = self.probe_every;
        let method = CompressionMethod::ALL[self.probed % 2];
        self.probed += 1;
        if self.present == Some(method) {
            return None;
        }
        Some(method)
    }

    /// A probe of `content` bytes has become `compressed` bytes in so many seconds.
    pub(crate) fn on_probe(
        &mut self,
        method: CompressionMethod,
        content: u64,
        compressed: u64,
        seconds: f64,
    ) {
        let (content, compressed) = (float(content.max(1)), float(compressed));
        let (ratio, compress) = (compressed / content, seconds / content);
        let measured = &mut self.methods[index(method)];
        measured.compress = match measured.ratio {
            Some(_) => mix(measured.compress, compress, PROBE_WEIGHT),
            None => compress,
        };
        let known = measured.ratio.unwrap_or(ratio);
        measured.ratio = Some(mix(known, ratio, PROBE_WEIGHT));
        let (least, most) = PROBE_EVERY;
        let all_known = self.methods.iter().all(|method| method.ratio.is_some());
        self.probe_every = if all_known && self.best().is_none() {
            (self.probe_every * 2).min(most)
        } else {
            least
        };
    }

    /// Accounts for what was sent, and decides.
    pub(crate) fn on_window(&mut self, window: Window) {
        let Window {
            content, written, ..
        } = window;
        if content == 0 || written == 0 || window.total <= 0.0 {
            return;
        }
        self.now += window.total;
        let limits = window.writing >= window.total * LIMITS;
        self.in_a_row = match limits == self.limits {
            true => self.in_a_row.saturating_add(1),
            false => 0,
        };
        self.limits = limits;
        self.written += written;
        let applied = self.written.saturating_sub(window.in_flight);
        let carried = applied.saturating_sub(self.applied);
        self.applied = applied;
        // The time of what was sent before is not that of the present choice.
        let was_settled = self.settled;
        self.settled = applied >= self.changed_at;
        if !was_settled {
            return;
        }
        // What fills buffers does not measure the line.
        self.filling = self.filling.saturating_sub(written);
        if self.filling > 0 && !self.limits {
            return;
        }
        self.filling = 0;
        self.measure(window, carried);
        self.decide();
    }

    fn measure(&mut self, window: Window, carried: u64) {
        let (content, written) = (float(window.content), float(window.written));
        let work = (window.total - window.compressing - window.writing).max(0.0) / content;
        self.work = mix(self.work, work, WEIGHT);
        self.carried.add(window.total, carried, written);
        let measured = window.total / written;
        let line = self.line.unwrap_or(measured);
        self.line = match (self.limits, self.present) {
            (true, None) if self.in_a_row <= JUST_FULL => Some(measured),
            (true, _) => Some(mix(line, measured, WEIGHT)),
            // It has carried so much without being the limit.
            (false, Some(_)) => Some(self.carried.line().map_or(line, |most| line.min(most))),
            (false, None) => None,
        };
        let taken = window.total / content;
        match self.present {
            None => {
                // When it begins to be the limit, or ends to be it, that changes at once.
                let known = self.plain.filter(|_| self.in_a_row > JUST_FULL);
                let known = known.unwrap_or(taken);
                self.plain = Some(mix(known, taken, WEIGHT));
            }
            Some(method) => {
                let measured = &mut self.methods[index(method)];
                let ratio = measured.ratio.unwrap_or(1.0);
                measured.ratio = Some(mix(ratio, written / content, WEIGHT));
                let compress = window.compressing / content;
                measured.compress = mix(measured.compress, compress, WEIGHT);
                let known = measured.taken.unwrap_or(taken);
                measured.taken = Some(mix(known, taken, WEIGHT));
            }
        }
    }

    /// What a byte is predicted to take with `method`.
    fn predicted(&self, method: CompressionMethod) -> Option<f64> {
        let measured = &self.methods[index(method)];
        let (ratio, line) = (measured.ratio?, self.line?);
        let predicted = (self.work + measured.compress).max(line * ratio);
        (self.now >= measured.paused_until).then_some(predicted)
    }

    /// The method other than the present one that is predicted to gain most over the present
    /// choice, if one gains enough.
    fn best(&self) -> Option<CompressionMethod> {
        let most = match self.present {
            None => self.plain? * BEGIN,
            Some(method) => self.methods[index(method)].taken? * BETTER,
        };
        let others = CompressionMethod::ALL.into_iter();
        let others = others.filter(|&method| self.present != Some(method));
        others
            .filter_map(|method| Some((self.predicted(method)?, method)))
            .filter(|(predicted, _)| *predicted < most)
            .min_by(|one, two| one.0.total_cmp(&two.0))
            .map(|(_, method)| method)
    }

    fn decide(&mut self) {
        let Some(present) = self.present else {
            let may_begin = self.limits && self.in_a_row >= CERTAIN;
            match self.best().filter(|_| may_begin) {
                Some(method) => {
                    let in_vain = std::mem::take(&mut self.on_trial);
                    self.trial_after = match in_vain {
                        true => (self.trial_after * 2.0).min(PAUSE.1),
                        false => TRIAL_AFTER,
                    };
                    self.change(Some(method));
                }
                None if may_begin || !self.limits => self.on_trial = false,
                None => {}
            }
            return;
        };
        // On a busy machine a thread waits for its processor in some windows.
        if self.carried.windows < Carried::ENOUGH {
            return;
        }
        let age = self.now - self.since;
        let taken = self.methods[index(present)].taken.unwrap_or(0.0);
        let slower = self.plain.is_some_and(|plain| plain * STAY <= taken);
        let without = self.work.max(self.line.unwrap_or(0.0));
        if slower || without * STAY <= taken {
            let measured = &mut self.methods[index(present)];
            if slower && self.now - self.begun < AT_ONCE {
                measured.paused_until = self.now + measured.pause;
                measured.pause = (measured.pause * 2.0).min(PAUSE.1);
            } else {
                measured.pause = PAUSE.0;
            }
            self.change(None);
        } else if let Some(better) = self.best() {
            self.change(Some(better));
        } else if !self.limits && self.carried.keeps_up() && age >= self.trial_after {
            self.on_trial = true;
            self.change(None);
        }
    }

    fn change(&mut self, choice: Option<CompressionMethod>) {
        match choice {
            // The buffers may be empty now.
            None => self.filling = BUFFERED,
            Some(method) => self.methods[index(method)].taken = None,
        }
        (self.changed_at, self.settled) = (self.written, false);
        self.carried = Carried::default();
        match (self.present, choice) {
            (None, Some(_)) => self.begun = self.now,
            // It is measured again.
            (Some(_), None) => self.plain = None,
            _ => {}
        }
        (self.present, self.since) = (choice, self.now);
    }
}

fn index(method: CompressionMethod) -> usize {
    match method {
        CompressionMethod::Lz4 => 0,
        CompressionMethod::Zstd => 1,
    }
}

fn mix(known: f64, new: f64, weight: f64) -> f64 {
    known + (new - known) * weight
}

#[allow(clippy::cast_precision_loss, reason = "an average needs no more")]
fn float(number: u64) -> f64 {
    number as f64
}

#[cfg(test)]
#[cfg(not(loom))]
#[path = "choice_tests.rs"]
mod tests;
