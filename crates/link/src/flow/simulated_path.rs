//! Tests of the flow control on a simulated line: a token bucket with a queue, like `tc tbf`, a
//! fixed delay, and the relevant part of TCP: it sends at the given pace, and smooths the round
//! trip.

use super::*;
use std::collections::VecDeque;

/// A line that several links share.
#[derive(Debug)]
struct Line {
    /// In bytes a second.
    rate: f64,
    /// The size of the token bucket, in bytes.
    bucket: f64,
    /// The delay from the end of the queue to the acknowledgement, in seconds.
    delay: f64,
    /// When the line has sent all queued bytes; the bucket is full when that was `bucket / rate`
    /// ago.
    paid: f64,
}

impl Line {
    fn new(rate: f64, bucket: f64, delay: f64) -> Self {
        Self {
            rate,
            bucket,
            delay,
            paid: -1.0,
        }
    }

    /// When `bytes` that enter the line `at` this time have passed it.
    fn carry(&mut self, bytes: u64, at: f64) -> f64 {
        self.paid = self.paid.max(at - self.bucket / self.rate) + bytes as f64 / self.rate;
        self.paid.max(at)
    }

    /// The current queueing delay of a page, without its own transmission.
    fn wait(&self, at: f64) -> f64 {
        (self.paid - at).max(0.0)
    }
}

/// One link: the flow control, and the kernel's part.
struct Sender {
    window: Window,
    /// Written by the thread, not yet sent.
    unsent: VecDeque<u64>,
    /// Sent: the time of the acknowledgement, the time of sending, bytes.
    flying: VecDeque<(f64, f64, u64)>,
    acked: u64,
    smooth: f64,
    next: f64,
}

/// The results of a run.
#[derive(Debug)]
struct Run {
    /// The used share of the line's capacity.
    carried: f64,
    /// The queueing delays of urgent pages, in seconds.
    mean: f64,
    longest: f64,
}

struct Setting {
    line: Line,
    senders: Vec<Sender>,
    zero: Instant,
    now: f64,
    /// The interval at which the threads run, in seconds.
    every: f64,
}

impl Setting {
    fn new(line: Line, links: u64, guest_waits: bool) -> Self {
        let zero = Instant::now();
        let sender = || {
            let mut window = Window::new(zero);
            window.start_postcopy(zero, links, zero);
            window.set_guest_waits(guest_waits);
            Sender {
                window,
                unsent: VecDeque::new(),
                flying: VecDeque::new(),
                acked: 0,
                smooth: 0.0,
                next: 0.0,
            }
        };
        Self {
            line,
            senders: (0..links).map(|_| sender()).collect(),
            zero,
            now: 0.0,
            every: 0.0,
        }
    }

    /// Runs for `seconds`; measures after the first `warm` of them.
    fn run(&mut self, warm: f64, seconds: f64) -> Run {
        const STEP: f64 = 5e-6;
        let begun = self.now;
        let mut thread = self.now;
        let (mut bytes, mut waits, mut longest, mut steps) = (0, 0.0, 0.0f64, 0.0);
        while self.now < begun + seconds {
            let at = self.zero + Duration::from_secs_f64(self.now);
            let measuring = self.now > begun + warm;
            let awake = self.now >= thread;
            if awake {
                thread = self.now + self.every;
            }
            for sender in &mut self.senders {
                while let Some(&(back, sent, size)) = sender.flying.front()
                    && back <= self.now
                {
                    sender.flying.pop_front();
                    sender.acked += size;
                    let trip = self.now - sent;
                    sender.smooth +=
                        (trip - sender.smooth) * if sender.smooth == 0.0 { 1.0 } else { 0.125 };
                    bytes += if measuring { size } else { 0 };
                }
                if awake {
                    let window = &mut sender.window;
                    window.on_sample(sender.acked, sender.smooth, at);
                    let piece = window.piece();
                    while window.wait(piece) == Wait::None {
                        window.on_sent(piece, at);
                        sender.unsent.push_back(piece);
                    }
                    assert!(window.on_ack(sender.acked));
                }
                while self.now >= sender.next
                    && let Some(size) = sender.unsent.pop_front()
                {
                    if let Some(pace) = sender.window.pace() {
                        sender.next = sender.next.max(self.now - STEP) + size as f64 / pace;
                    }
                    let back = self.line.carry(size, self.now) + self.line.delay;
                    sender.flying.push_back((back, self.now, size));
                }
            }
            if measuring {
                waits += self.line.wait(self.now);
                longest = longest.max(self.line.wait(self.now));
                steps += 1.0;
            }
            self.now += STEP;
        }
        Run {
            carried: bytes as f64 / (seconds - warm) / self.line.rate,
            mean: waits / steps,
            longest,
        }
    }
}

const GBIT: f64 = 125e6;
const BUCKET: f64 = 512.0 * 1024.0;

/// While the guest waits for pages, the line is full and its queue almost empty.
fn line_is_full_and_queue_short(rate: f64, bucket: f64, delay: f64, links: u64) {
    let mut setting = Setting::new(Line::new(rate, bucket, delay), links, true);
    setting.every = 300e-6;
    let run = setting.run(1.0, 3.0);
    let case = format!("{rate:e} B/s, bucket {bucket}, {delay} s, {links} links: {run:?}");
    assert!(run.carried > 0.95, "{case}");
    // The saved tokens of a bucket are spent at too high a pace before a queue shows it.
    let bound = 0.25e-3 + delay / 4.0;
    assert!(run.mean < bound, "{case}");
    assert!(run.longest < 10.0 * bound, "{case}");
}

#[test]
fn one_link_fills_the_line_but_not_its_queue() {
    for bucket in [0.0, BUCKET] {
        line_is_full_and_queue_short(GBIT, bucket, 50e-6, 1);
        line_is_full_and_queue_short(10.0 * GBIT, bucket, 50e-6, 1);
        line_is_full_and_queue_short(GBIT, bucket, 5e-3, 1);
        line_is_full_and_queue_short(10.0 * GBIT, bucket, 1e-3, 1);
        line_is_full_and_queue_short(10.0 * GBIT, bucket, 5e-3, 1);
    }
}

#[test]
fn several_links_share_a_line() {
    for bucket in [0.0, BUCKET] {
        line_is_full_and_queue_short(GBIT, bucket, 50e-6, 4);
        line_is_full_and_queue_short(10.0 * GBIT, bucket, 1e-3, 4);
        line_is_full_and_queue_short(10.0 * GBIT, bucket, 5e-3, 4);
    }
}

#[test]
fn pieces_are_short_on_the_wire() {
    for (rate, piece) in [
        (GBIT / 10.0, 4 << 10),
        (GBIT, 8 << 10),
        (10.0 * GBIT, 32 << 10),
    ] {
        let mut setting = Setting::new(Line::new(rate, 0.0, 50e-6), 1, true);
        setting.run(0.0, 1.0);
        assert_eq!(setting.senders[0].window.piece(), piece);
    }
}

#[test]
fn without_requests_the_line_is_full_even_with_late_threads() {
    for (rate, links) in [(GBIT, 1), (GBIT, 4), (10.0 * GBIT, 1)] {
        let mut setting = Setting::new(Line::new(rate, BUCKET, 50e-6), links, false);
        setting.every = 0.8e-3;
        let run = setting.run(1.0, 3.0);
        assert!(run.carried > 0.95, "{rate:e}, {links} links: {run:?}");
    }
}

#[test]
fn a_thread_that_rarely_runs_does_not_count_as_a_queue() {
    let mut setting = Setting::new(Line::new(GBIT, BUCKET, 50e-6), 1, true);
    setting.every = 20e-3;
    setting.run(0.0, 2.0);
    setting.every = 0.3e-3;
    let run = setting.run(0.3, 1.0);
    assert!(run.carried > 0.95, "{run:?}");
}

#[test]
fn the_pace_follows_a_line_that_becomes_slower_and_faster() {
    let mut setting = Setting::new(Line::new(10.0 * GBIT, BUCKET, 50e-6), 1, true);
    setting.every = 0.3e-3;
    setting.run(0.5, 1.0);
    setting.line.rate = GBIT;
    let slower = setting.run(0.8, 1.8);
    assert!(slower.carried > 0.95, "{slower:?}");
    assert!(slower.mean < 1e-3, "{slower:?}");
    setting.line.rate = 10.0 * GBIT;
    let faster = setting.run(0.5, 1.5);
    assert!(faster.carried > 0.95, "{faster:?}");
}

#[test]
fn a_request_shortens_the_queue() {
    let mut setting = Setting::new(Line::new(GBIT, BUCKET, 50e-6), 1, false);
    setting.every = 0.3e-3;
    setting.run(0.0, 1.0);
    setting.senders[0].window.set_guest_waits(true);
    let run = setting.run(0.05, 1.0);
    assert!(run.mean < 0.4e-3 && run.carried > 0.95, "{run:?}");
}

#[test]
fn what_the_kernel_may_hold_is_bounded() {
    let mut setting = Setting::new(Line::new(GBIT, BUCKET, 50e-6), 1, true);
    setting.run(0.0, 1.0);
    // Nothing passes the line any more: almost nothing more is sent.
    setting.line.rate = 1.0;
    setting.run(0.0, 1.0);
    assert!(setting.senders[0].window.in_flight() < 512 << 10);
}

/// The guest may wait for a page that is in the kernel. While requested pages fill the line, hardly
/// any capacity is left to be found.
#[test]
fn what_the_kernel_has_leaves_soon_however_little_capacity_is_found() {
    const GIVEN: u64 = 200 << 10;
    let mut setting = Setting::new(Line::new(GBIT, BUCKET, 50e-6), 1, true);
    setting.every = 300e-6;
    setting.run(0.0, 1.0);
    let zero = setting.zero + Duration::from_secs_f64(setting.now);
    let Sender { window, .. } = &mut setting.senders[0];
    window.on_sent(GIVEN, zero);
    let mut received = window.sent() - GIVEN;
    for step in 0..4_000_u32 {
        // Now and then the queue is empty.
        let round_trip = if step % 20 == 0 { 100e-6 } else { 5e-3 };
        received += 20;
        window.on_sample(
            received,
            round_trip,
            zero + Duration::from_micros(500) * step,
        );
    }
    let found = window.capacity.as_ref().and_then(Capacity::pace);
    assert!(found.is_some_and(|pace| pace < 1e6), "{found:?}");
    let pace = window.pace().unwrap();
    let kernel = (window.sent() - received) as f64;
    assert!(kernel / pace <= LONGEST_IN_KERNEL * 1.001, "{pace}");
    // The last of it, too.
    window.on_sample(window.sent() - 4096, 5e-3, zero + Duration::from_secs(3));
    let pace = window.pace().unwrap();
    assert!(4096.0 / pace < LONGEST_IN_KERNEL / 8.0, "{pace}");
}

/// What the kernel may have takes longer than a queue may last there.
#[test]
fn the_queue_of_a_slow_line_is_drained() {
    for rate in [GBIT / 100.0, GBIT / 50.0, GBIT / 10.0] {
        for has_waited in [true, false] {
            let mut setting = Setting::new(Line::new(rate, 0.0, 1e-3), 1, has_waited);
            setting.every = 300e-6;
            setting.run(0.0, 4.0);
            setting.senders[0].window.set_guest_waits(true);
            let run = setting.run(0.5, 4.0);
            assert!(run.mean < 10e-3, "{rate:e}, {has_waited}: {run:?}");
            assert!(run.longest < 100e-3, "{rate:e}, {has_waited}: {run:?}");
        }
    }
}

/// The next requested page may be among the kernel's data.
#[test]
fn the_kernel_has_less_data_while_the_guest_waits() {
    let mut setting = Setting::new(Line::new(GBIT, BUCKET, 50e-6), 1, false);
    setting.every = 0.3e-3;
    setting.run(0.0, 1.0);
    let with_kernel = |setting: &Setting| {
        let window = &setting.senders[0].window;
        window.sent - window.received
    };
    let calm = with_kernel(&setting);
    setting.senders[0].window.set_guest_waits(true);
    setting.run(0.0, 0.1);
    let waiting = with_kernel(&setting);
    assert!(waiting * 2 < calm, "{calm} and {waiting} bytes");
}

#[test]
fn an_idle_link_takes_a_piece_of_any_size() {
    let window = Window::new(Instant::now());
    assert_eq!(window.wait(1 << 40), Wait::None);
}

#[test]
fn an_impossible_acknowledgement_is_refused() {
    let now = Instant::now();
    let mut window = Window::new(now);
    window.on_sent(100, now);
    assert!(!window.on_ack(101));
    assert!(window.on_ack(60));
    assert!(!window.on_ack(59));
}

#[test]
fn in_pre_copy_only_the_peer_limits_the_window() {
    let now = Instant::now();
    let mut window = Window::new(now);
    window.on_sent(BULK_LIMIT - 10, now);
    assert_eq!(window.wait(10), Wait::None);
    assert_eq!(window.wait(11), Wait::Acknowledgement);
    assert_eq!(window.pace(), None);
}
