//! A guest's clock beside the host's: what a move may change of it.
//!
//! A reading says what the guest's clock showed at a moment of the host's clock, and how exactly
//! that is known: the guest read its clock at some time between the request and the answer. So what
//! the guest's clock lost in between two readings is known within the errors of both. QEMU stops
//! the clocks of a paused guest, in its own migration too: a move may cost as much as the guest was
//! paused, and nothing else.
//!
//! A busy host makes that less exact, and widens what passes. So each check says which jump it
//! would have noticed, and a move that was not measured exactly enough is repeated.

use crate::{Exits, Guest, LONG, MigrationPlan, log};
use hikkoshi_lab::{Vm, never_retried};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A jump of so much, s, must be noticed.
const JUMP: f64 = 0.03;

/// Moves of which one must be measured exactly. On a quiet host the first one is.
const ATTEMPTS: u32 = 20;

/// Readings of which the most exact one counts.
const READINGS: usize = 30;

/// More readings are taken while none is as exact as this, s, for up to [`PATIENCE`]. Then the most
/// exact one is used: its error is a part of what must be noticed ([`JUMP`]).
const READING_ERROR: f64 = 0.003;

/// How long a more exact reading is waited for: a guest whose hypervisor is slow has none.
const PATIENCE: Duration = Duration::from_secs(2);

/// How exactly a rate can be known at best, in parts of one: the guest's kernel adjusts its clock.
const RATE_ERROR: f64 = 2e-4;

/// A time by a guest's clocks and by the host's.
#[derive(Clone, Copy, Debug)]
pub struct ClockReading {
    /// By the host's clock: the middle of the time in which the guest can have read its own.
    host: Instant,
    /// By the guest's clock: the middle of what it can have shown at its time-stamp counter's
    /// reading, s.
    guest: f64,
    /// The guest's time-stamp counter.
    ticks: f64,
    /// How far `host` and `guest` can be apart, s.
    error: f64,
    /// How far `ticks` and `guest` can be apart, s.
    ticks_error: f64,
}

impl ClockReading {
    /// A reading that was requested and was here at these times by the host's clock. The guest's
    /// clock showed these seconds before and after the guest read its time-stamp counter.
    pub fn new(asked: Instant, answered: Instant, guest: (f64, f64), ticks: f64) -> Self {
        let took = answered - asked;
        let ticks_error = (guest.1 - guest.0) / 2.0;
        Self {
            host: asked + took / 2,
            guest: f64::midpoint(guest.0, guest.1),
            ticks,
            error: took.as_secs_f64() / 2.0,
            ticks_error,
        }
    }

    /// The most exact of several readings, with what `read` returned with it.
    pub fn most_exact<T>(mut read: impl FnMut() -> (Self, T)) -> (Self, T) {
        let deadline = Instant::now() + PATIENCE;
        let mut best = read();
        for number in 1.. {
            let exact = best.0.error <= READING_ERROR || Instant::now() >= deadline;
            if number >= READINGS && exact {
                break;
            }
            let next = read();
            if next.0.error < best.0.error {
                best = next;
            }
        }
        best
    }

    /// Seconds of the host's clock.
    fn since(&self, earlier: &Self) -> f64 {
        (self.host - earlier.host).as_secs_f64()
    }

    /// Seconds of the time-stamp counter.
    fn counted_since(&self, earlier: &Self, rates: &ClockRates) -> f64 {
        (self.ticks - earlier.ticks) / rates.ticks
    }
}

/// The rates of a guest's clocks.
#[derive(Clone, Copy, Debug)]
pub struct ClockRates {
    /// Seconds of the guest's clock in a second of the host's.
    clock: f64,
    /// The error of that.
    clock_error: f64,
    /// Ticks of the time-stamp counter in a second of the guest's clock.
    ticks: f64,
    /// The relative error of that.
    ticks_error: f64,
}

impl ClockRates {
    /// The rates between two readings, between which the guest ran.
    pub fn between(first: &ClockReading, second: &ClockReading) -> Self {
        let (host, guest) = (second.since(first), second.guest - first.guest);
        Self {
            clock: guest / host,
            clock_error: (first.error + second.error) / host + RATE_ERROR,
            ticks: (second.ticks - first.ticks) / guest,
            ticks_error: (first.ticks_error + second.ticks_error) / guest + RATE_ERROR,
        }
    }
}

/// How long a guest's clocks were stopped for a move.
#[derive(Clone, Copy, Debug)]
pub struct ClockPause {
    /// From the source's `STOP` to the destination's `RESUME`, by QEMU's time stamps, s.
    pub length: f64,
    /// By how much longer at most, s: QEMU stops the clocks before it reports `STOP`, and starts
    /// them after it has reported `RESUME`.
    pub more: f64,
}

impl ClockPause {
    /// Of a guest that ran.
    pub const NONE: Self = Self {
        length: 0.0,
        more: 0.0,
    };

    /// Of a guest that was moved from one machine to another; the source's engine logs as [`LOG`]
    /// says.
    fn of_move(source: &Vm, destination: &Vm, exits: &Exits) -> Self {
        let resume = destination.qmp().wait_event("RESUME", 0, LONG).unwrap();
        source.qmp().wait_event("STOP", 0, LONG).unwrap();
        let events = source.qmp().events();
        let stop = events
            .iter()
            .rfind(|event| event.name == "STOP" && event.happened <= resume.happened)
            .unwrap_or_else(|| {
                never_retried("the guest ran twice");
                panic!("the guest ran twice: {events:?}, {resume:?}")
            });
        let [_, Some(there)] = &exits.json_reports else {
            panic!("the destination's JSON report is missing: {exits:?}");
        };
        let stopping = stop_took(&exits.migrate.stderr);
        // When this has been announced, `cont` has returned.
        let starting = there.step_ms("guest announced") - there.step_ms("guest runs");
        Self {
            length: (resume.happened - stop.happened).as_secs_f64(),
            more: stopping.as_secs_f64() + starting * 1e-3,
        }
    }
}

/// The variable with which `hikkoshi migrate` logs how long it took to pause the guest.
const LOG: &str = "HIKKOSHI_LOG=hikkoshi_qemu=debug";

/// From the request to pause the guest to the event, as the source's engine logs it.
fn stop_took(log: &str) -> Duration {
    let line = log
        .lines()
        .find(|line| line.contains(": the guest is paused "));
    let took = line.and_then(|line| {
        let mut words = line.split_whitespace();
        parse_duration(words.find_map(|word| word.strip_prefix("stop="))?)
    });
    took.unwrap_or_else(|| panic!("the log has no line about the pause: {log}"))
}

/// Parses a duration as `{:?}` formats it.
fn parse_duration(text: &str) -> Option<Duration> {
    let units = [("ns", 1e-9), ("µs", 1e-6), ("ms", 1e-3), ("s", 1.0)];
    let (number, unit) = units
        .iter()
        .find_map(|(name, unit)| Some((text.strip_suffix(name)?, unit)))?;
    Duration::try_from_secs_f64(number.parse::<f64>().ok()? * unit).ok()
}

/// Whether the time-stamp counter of a paused guest is paused.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum PausedCounter {
    /// It is: QEMU emulates it.
    Stops,
    /// The hypervisor decides: one that virtualises in software may show the host's counter.
    MayRun,
}

/// Checks that the guest's clock ran on from one reading to a later one, without what it was
/// paused. Its time-stamp counter must have run on with it. Returns the smallest jump back that is
/// noticed in any case, s.
///
/// # Errors
/// Which clock jumped.
pub fn ran_on(
    (before, after): (&ClockReading, &ClockReading),
    rates: &ClockRates,
    pause: ClockPause,
    counter: PausedCounter,
) -> Result<f64, String> {
    let (host, guest) = (after.since(before), after.guest - before.guest);
    let context = || format!("{before:?}, {after:?}, {rates:?}, {pause:?}");
    if guest <= 0.0 {
        return Err(format!("the clock went back; {}", context()));
    }
    let paused = pause.length + pause.more;
    let error = before.error + after.error + before.ticks_error + after.ticks_error;
    let error = error + host * rates.clock_error;
    let gained = guest - host * rates.clock;
    if !(-paused - error..=error).contains(&gained) {
        return Err(format!("the clock gained {gained} s; {}", context()));
    }
    let ticks_error = before.ticks_error + after.ticks_error + guest * rates.ticks_error;
    let gained = after.counted_since(before, rates) - guest;
    let most = match counter {
        PausedCounter::Stops => 0.0,
        PausedCounter::MayRun => paused,
    };
    if !(-ticks_error..=most + ticks_error).contains(&gained) {
        return Err(format!(
            "the time-stamp counter gained {gained} s on the clock; {}",
            context()
        ));
    }
    // What is known with an error is compared with a limit that allows for this error.
    Ok(pause.more + 2.0 * error.max(ticks_error))
}

/// Moves the guest, and checks that its clocks ran on. If a busy host made that inexact, the guest
/// is moved again: `plan` returns the plan of the next move. Returns what was read before and
/// after.
///
/// # Panics
/// When a clock jumped, or no move was measured exactly.
pub fn assert_clocks_run_on<T>(
    guest: &mut Guest<'_>,
    rates: &ClockRates,
    counter: PausedCounter,
    mut plan: impl FnMut() -> MigrationPlan,
    mut read: impl FnMut(&Vm) -> (ClockReading, T),
) -> [(ClockReading, T); 2] {
    for _ in 0..ATTEMPTS {
        let plan = plan().migrate_launcher(&["env", LOG]);
        let mode = plan.mode;
        let before = ClockReading::most_exact(|| read(guest.vm()));
        let (exits, finished) = guest.start_migration(&plan).wait();
        exits.assert_source(0, &[]);
        exits.assert_destination(0, &[]);
        let source = Arc::clone(guest.vm());
        let after = ClockReading::most_exact(|| read(&finished.destination));
        let pause = ClockPause::of_move(&source, &finished.destination, &exits);
        drop(source);
        guest.complete_migration(&exits, finished, "running");
        let noticed = ran_on((&before.0, &after.0), rates, pause, counter)
            .unwrap_or_else(|why| panic!("{mode}: {why}"));
        let since = after.0.since(&before.0);
        log(format!(
            "{mode}: paused for {:.1} ms; in {since:.3} s the clock gained {:.1} ms, the counter \
             {:.1} ms on it; a jump of {:.1} ms would be noticed",
            pause.length * 1e3,
            (after.0.guest - before.0.guest - since * rates.clock) * 1e3,
            (after.0.counted_since(&before.0, rates) - (after.0.guest - before.0.guest)) * 1e3,
            noticed * 1e3
        ));
        if noticed <= JUMP {
            return [before, after];
        }
    }
    panic!("too busy a host: no move was measured exactly");
}

#[cfg(test)]
mod tests {
    use super::*;

    const TICKS: f64 = 2e9;

    /// Reading that took 3 ms, of a guest whose clock is ten seconds ahead.
    fn reading(zero: Instant, outside: f64, clock: f64, counter: f64) -> ClockReading {
        let asked = zero + Duration::from_secs_f64(outside);
        let answered = asked + Duration::from_millis(3);
        let clock = clock + 10.0015;
        ClockReading::new(
            asked,
            answered,
            (clock - 0.0001, clock + 0.0001),
            (counter + 10.0015) * TICKS,
        )
    }

    /// Whether a jump is noticed, with nearly the greatest errors that pass, of a guest that was
    /// paused for 15 ms. Its clocks show that they ran for so long, s.
    fn noticed(clock: f64, counter: f64, kind: PausedCounter) -> bool {
        let zero = Instant::now();
        let at = |outside, clock, counter| reading(zero, outside, clock, counter);
        let rates = ClockRates::between(&at(0.0, 0.0, 0.0), &at(2.0, 2.0, 2.0));
        let before = at(2.0, 2.0, 2.0);
        let after = at(4.0, 2.0 + clock, 2.0 + counter);
        let pause = ClockPause {
            length: 0.015,
            more: 0.012,
        };
        match ran_on((&before, &after), &rates, pause, kind) {
            Ok(noticed) => {
                assert!((0.02..=JUMP).contains(&noticed), "{noticed}");
                false
            }
            Err(_) => true,
        }
    }

    /// In each direction.
    #[test]
    fn a_jump_of_30_ms_is_noticed() {
        use PausedCounter::{MayRun, Stops};
        const PAUSED: f64 = 2.0 - 0.015;
        for kind in [Stops, MayRun] {
            assert!(!noticed(PAUSED, PAUSED, kind), "stopped for the pause");
            assert!(!noticed(2.0, 2.0, kind), "not stopped");
            let (behind, ahead) = (PAUSED - JUMP, 2.0 + JUMP);
            assert!(noticed(behind, behind, kind), "both behind");
            assert!(noticed(ahead, ahead, kind), "both ahead");
            assert!(noticed(PAUSED, PAUSED - JUMP, kind), "the counter behind");
            assert!(noticed(PAUSED, 2.0 + JUMP, kind), "the counter ahead");
            assert!(noticed(-1.0, PAUSED, kind), "back");
        }
        assert!(!noticed(PAUSED, 2.0, MayRun), "the host's counter");
        assert!(noticed(PAUSED, 2.0, Stops), "a counter that did not stop");
    }

    #[test]
    fn durations_are_parsed() {
        for duration in [3, 4_567, 8_901_234, 5_678_901_234].map(Duration::from_nanos) {
            let log = format!(
                "hikkoshi: debug: other\n\
                 hikkoshi: debug: the guest is paused answer=3s stop={duration:?}\n"
            );
            assert_eq!(stop_took(&log), duration);
        }
    }
}
