//! The choice on simulated lines, processors, contents and destinations.

use std::collections::VecDeque;

use super::*;

const MIB: u64 = 1 << 20;

/// The line, in seconds a byte.
const GBIT: f64 = 8e-9;

#[derive(Clone, Copy)]
struct Content {
    /// The size of a compressed byte and the seconds that it takes, by lz4 and zstd.
    lz4: (f64, f64),
    zstd: (f64, f64),
}

/// Compresses three times by zstd.
const TEXT: Content = Content {
    lz4: (0.5, 1.2e-9),
    zstd: (0.33, 2.7e-9),
};
const RANDOM: Content = Content {
    lz4: (1.0, 0.5e-9),
    zstd: (1.0, 1.0e-9),
};

/// A link whose kernel buffers 6 MiB.
struct Link {
    choice: CompressionChoice,
    line: f64,
    work: f64,
    /// How long the destination takes for a byte of pages, and to decompress one.
    apply: f64,
    decompress: f64,
    content: Content,
    /// How much longer compressing takes on busy processors.
    busy: f64,
    /// Seconds, and what is in the buffers: when it has been applied, and how many bytes it has.
    now: f64,
    buffered: VecDeque<(f64, u64)>,
    probing: f64,
    compressed: u64,
}

impl Link {
    fn new(line: f64, content: Content) -> Self {
        Self {
            choice: CompressionChoice::new(),
            line,
            work: 0.4e-9,
            apply: 0.6e-9,
            decompress: 0.8e-9,
            content,
            busy: 1.0,
            now: 0.0,
            buffered: VecDeque::new(),
            probing: 0.0,
            compressed: 0,
        }
    }

    fn cost(&self, method: CompressionMethod) -> (f64, f64) {
        let (ratio, compress) = match method {
            CompressionMethod::Lz4 => self.content.lz4,
            CompressionMethod::Zstd => self.content.zstd,
        };
        (ratio, compress * self.busy)
    }

    /// Bytes that have not been applied now.
    fn in_flight(&mut self) -> u64 {
        while self.buffered.front().is_some_and(|(at, _)| *at <= self.now) {
            self.buffered.pop_front();
        }
        self.buffered.iter().map(|(_, bytes)| bytes).sum()
    }

    /// Sends so many MiB, and returns the seconds that it took.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    fn send(&mut self, mib: u64) -> f64 {
        let begin = self.now;
        self.compressed = 0;
        for _ in 0..mib {
            let from = self.now;
            let content = float(MIB);
            if let Some(method) = self.choice.probe(MIB) {
                let (ratio, compress) = self.cost(method);
                let seconds = compress * float(MIB / 16);
                self.now += seconds;
                self.probing += seconds;
                let compressed = (float(MIB / 16) * ratio) as u64;
                self.choice.on_probe(method, MIB / 16, compressed, seconds);
            }
            let (ratio, compress) = match self.choice.method() {
                Some(method) => self.cost(method),
                None => (1.0, 0.0),
            };
            self.compressed += u64::from(compress > 0.0);
            self.now += (self.work + compress) * content;
            let written = content * ratio;
            let applied = self.apply + if compress > 0.0 { self.decompress } else { 0.0 };
            let carried = (self.line * written).max(applied * content);
            let begin_write = self.now;
            self.now += 0.05e-9 * written;
            let mut in_flight = self.in_flight();
            while in_flight > 6 * MIB {
                self.now = self.now.max(self.buffered[0].0);
                in_flight = self.in_flight();
            }
            let after = self.buffered.back().map_or(self.now, |(at, _)| *at);
            let applied = after.max(self.now) + carried;
            self.buffered.push_back((applied, written as u64));
            self.choice.on_window(Window {
                content: MIB,
                written: written as u64,
                total: self.now - from,
                compressing: compress * content,
                writing: self.now - begin_write,
                in_flight: in_flight + written as u64,
            });
        }
        self.now - begin
    }
}

#[test]
fn a_slow_line_with_content_that_shrinks_turns_it_on() {
    for line in [GBIT, 5.0 * GBIT, 100.0 * GBIT] {
        let mut link = Link::new(line, TEXT);
        link.send(64);
        assert_eq!(
            link.choice.method(),
            Some(CompressionMethod::Zstd),
            "{line}"
        );
        let took = link.send(1024);
        let least = 1024.0 * float(MIB) * (line * 0.33).max(3.1e-9);
        assert!(took < least * 1.08, "{took} of {least} for {line}");
    }
}

#[test]
fn the_faster_method_is_chosen_where_zstd_would_limit() {
    let mut link = Link::new(GBIT / 3.0, TEXT);
    link.send(256);
    assert_eq!(link.choice.method(), Some(CompressionMethod::Lz4));
}

#[test]
fn a_fast_line_stays_off_and_costs_nothing() {
    let mut link = Link::new(GBIT / 40.0, TEXT);
    let took = link.send(4096);
    assert_eq!(link.choice.method(), None);
    let least = 4096.0 * float(MIB) * 0.6e-9;
    assert!(took < least * 1.02, "{took} of {least}");
}

#[test]
fn content_that_does_not_shrink_stays_off_and_is_nearly_free() {
    let mut link = Link::new(GBIT, RANDOM);
    let took = link.send(1024);
    assert_eq!((link.choice.method(), link.compressed), (None, 0));
    let least = 1018.0 * float(MIB) * GBIT;
    assert!(took < least * 1.01, "{took} of {least}");
    assert!(link.probing < took * 0.001, "{}", link.probing);
}

#[test]
fn content_that_changes_turns_it_on_and_off() {
    let mut link = Link::new(GBIT, RANDOM);
    link.send(512);
    for _ in 0..3 {
        link.content = TEXT;
        link.send(256);
        assert!(link.choice.method().is_some());
        link.content = RANDOM;
        link.send(64);
        assert_eq!(link.choice.method(), None);
        link.send(512);
        assert_eq!(link.compressed, 0);
    }
}

#[test]
fn busy_processors_turn_it_off_and_idle_ones_on() {
    let mut link = Link::new(GBIT, TEXT);
    link.send(128);
    assert!(link.choice.method().is_some());
    link.busy = 12.0;
    link.send(256);
    assert_eq!(link.choice.method(), None);
    link.busy = 1.0;
    link.send(1024);
    assert!(link.choice.method().is_some());
}

#[test]
fn a_line_that_changes_turns_it_off_and_on() {
    let mut link = Link::new(GBIT, TEXT);
    link.send(1024);
    assert!(link.choice.method().is_some());
    link.line = GBIT / 40.0;
    // It is noticed in a trial: some seconds of sending.
    link.send(4096);
    assert_eq!(link.choice.method(), None);
    link.line = GBIT;
    link.send(128);
    assert!(link.choice.method().is_some());
}

/// Its time looks like that of a line, but compression only adds to it.
#[test]
fn a_slow_destination_is_not_made_slower() {
    let mut link = Link::new(GBIT / 40.0, TEXT);
    link.apply = 3.0e-9;
    link.decompress = 2.0e-9;
    let took = link.send(8192);
    let least = 8192.0 * float(MIB) * 3.0e-9;
    assert!(took < least * 1.03, "{took} of {least}");
    link.send(1024);
    assert_eq!(link.choice.method(), None);
}

#[test]
fn mixed_content_is_sent_as_fast_as_without() {
    let mut link = Link::new(GBIT, RANDOM);
    let mut took = 0.0;
    for _ in 0..64 {
        link.content = TEXT;
        took += link.send(8);
        link.content = RANDOM;
        took += link.send(8);
    }
    let without = 1024.0 * float(MIB) * GBIT;
    assert!(took < without * 1.01, "{took} of {without}");
}
