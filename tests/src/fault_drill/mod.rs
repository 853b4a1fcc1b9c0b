//! Drills: the same post-copy is interrupted again and again, at random moments, and has to be gone
//! on with each time. What came of it makes the table of `docs/reliability.md`.
//!
//! Moments are parts of what post-copy has to bring: a moment of 0.4 has come when two fifths of the
//! pages that the guest has at the source are at the destination. They come from a seed that is told, and that
//! `HIKKOSHI_SEED` gives again. `HIKKOSHI_DRILLS` names a file for the table.

mod random;
mod table;

pub use random::Random;

use crate::{Guest, LONG, Migration, MigrationPlan, log};
use hikkoshi_lab::{Report, Vm};
use random::seed;
use std::os::unix::fs::MetadataExt;
use std::sync::PoisonError;
use std::time::{Duration, Instant};
use table::{DONE, Interruption, LINKS, ms, render};

/// The last moment: some pages have to be missing still when the engines are killed.
const LAST: f64 = 0.9;

/// How often to look for a moment.
const LOOK: Duration = Duration::from_millis(1);

/// Trips that a drill may take: a machine that is slow in the wrong place may be through with one
/// before all of its moments have come, or between a moment and what was to be done at it.
const MOST_TRIPS: u32 = 8;

/// What is done again and again.
#[derive(Debug)]
pub struct FaultDrill {
    what: &'static str,
    random: Random,
    done: Vec<Interruption>,
}

impl FaultDrill {
    /// Nothing done yet.
    pub fn new(what: &'static str) -> Self {
        // Each drill has numbers of its own, whichever others are run.
        let own = what.bytes().fold(seed(), |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        log(format!("{what}: HIKKOSHI_SEED={}", seed()));
        Self {
            what,
            random: Random(own),
            done: Vec::new(),
        }
    }

    /// Where its moments come from.
    pub fn random(&mut self) -> &mut Random {
        &mut self.random
    }

    /// Moves the guest as often as it takes to interrupt it `times` times in all, up to `at_once`
    /// times on the way of each trip. `each` interrupts it, does what it takes to go on, and
    /// returns when both engines work together again, with a word for what it did; or with none
    /// when the migration was over before it could be interrupted. That moment was missed, and
    /// another one comes in its place. The guest must be sound after each trip.
    ///
    /// # Panics
    /// When anything is not as it should be.
    pub fn run(
        &mut self,
        guest: &mut Guest<'_>,
        (times, at_once): (usize, usize),
        mut plan: impl FnMut(u32) -> MigrationPlan,
        mut each: impl FnMut(&mut Migration, &mut Random) -> Option<String>,
    ) {
        let wanted = self.done.len() + times;
        for number in 0..MOST_TRIPS {
            let left = wanted - self.done.len();
            if left == 0 {
                return;
            }
            self.run_migration(guest, left.min(at_once), &plan(number), &mut each);
        }
        panic!("{}: {} of {wanted} moments", self.what, self.done.len());
    }

    fn run_migration(
        &mut self,
        guest: &mut Guest<'_>,
        times: usize,
        plan: &MigrationPlan,
        each: &mut impl FnMut(&mut Migration, &mut Random) -> Option<String>,
    ) {
        let mut breakpoints: Vec<_> = (0..times).map(|_| self.random.part() * LAST).collect();
        breakpoints.sort_by(f64::total_cmp);
        let links = LINKS[usize::from(plan.is_encrypted())];
        let mut migration = guest.start_migration(plan);
        migration.receive.wait_stderr("the guest runs here now");
        // What was there before is no part of it.
        let before = held(&migration.destination);
        let to_come = held(guest.vm()) - before;
        let mut missed = false;
        for breakpoint in breakpoints {
            let Some(at) = migration.wait_arrived((before, to_come), breakpoint) else {
                break;
            };
            let lines = guest.vm().console().len();
            let began = Instant::now();
            let Some(how) = each(&mut migration, &mut self.random) else {
                missed = true;
                break;
            };
            let outage = began.elapsed();
            let waited = well_again(&migration.destination, lines);
            log(format!(
                "{}, {links}: {how} at {:.0} %: outage {:.0} ms, the guest waited {:.0} ms",
                self.what,
                at * 100.0,
                ms(outage),
                ms(waited)
            ));
            self.done.push(Interruption {
                how,
                links,
                at,
                outage,
                waited,
            });
        }
        let journals = migration.journal_folders().clone();
        if missed {
            log(format!("{}: over before it was interrupted", self.what));
            migration.finish_after_success();
            let (_, finished) = migration.wait();
            guest.move_to_destination(finished, self.what);
        } else {
            let (exits, finished) = migration.wait();
            guest.complete_resumed_migration(&exits, finished, self.what);
        }
        for folder in journals {
            let left: Vec<_> = std::fs::read_dir(&folder)
                .unwrap()
                .map(|file| file.unwrap().file_name())
                .collect();
            assert!(left.is_empty(), "journals left: {left:?}");
        }
    }

    /// Adds it to the table.
    ///
    /// # Panics
    /// When the file for the table cannot be written.
    pub fn finish(self) {
        let table = {
            let mut all = DONE.lock().unwrap_or_else(PoisonError::into_inner);
            all.insert(self.what, self.done);
            render(&all)
        };
        if let Some(path) = std::env::var_os("HIKKOSHI_DRILLS") {
            std::fs::write(path, table).unwrap();
        }
    }
}

impl Migration {
    /// Waits until that part of what is to come has come to what was there before, by what the
    /// destination's RAM files hold, and gives the part found; `None` when an engine has ended by
    /// then.
    fn wait_arrived(&mut self, (before, to_come): (f64, f64), part: f64) -> Option<f64> {
        let deadline = Instant::now() + LONG;
        loop {
            if self.migrate.has_exited() || self.receive.has_exited() {
                return None;
            }
            let now = (held(&self.destination) - before) / to_come;
            if now >= part {
                return Some(now);
            }
            assert!(
                Instant::now() < deadline,
                "{now} of the pages have come, not {part}; migrate: {}; receive: {}",
                self.migrate.stderr(),
                self.receive.stderr()
            );
            std::thread::sleep(LOOK);
        }
    }
}

/// What its RAM files hold, in blocks: holes of tmpfs are pages that are not there.
#[allow(clippy::cast_precision_loss)]
fn held(vm: &Vm) -> f64 {
    let blocks = |path| std::fs::metadata(path).unwrap().blocks();
    vm.ram_files().iter().map(blocks).sum::<u64>() as f64
}

/// Waits until the guest has told twice, from now on, how it is, and gives the longest time since
/// console line `first` in which it did not get on: in an access to a page, or between two of its
/// lines beyond the time that it lets pass. All by its own clock.
fn well_again(vm: &Vm, first: usize) -> Duration {
    let mut told = 0;
    let (mut spans, mut touch_us) = (Vec::new(), 0.0f64);
    let now = vm.console().len();
    vm.wait_report("work after an interruption", now, LONG, |report| {
        told += u32::from(matches!(report, Report::Verify(_)));
        (told == 2).then_some(())
    })
    .unwrap();
    for line in vm.console().since(first) {
        if let Report::Verify(verify) = &line.report
            && *line.vm == *vm.name()
        {
            spans.push(verify.span_ms);
            touch_us = touch_us.max(verify.latency.max_us);
        }
    }
    let longest = spans.iter().max().copied().unwrap_or(0);
    let usual = spans.iter().min().copied().unwrap_or(0);
    Duration::from_millis(longest - usual).max(Duration::from_secs_f64(touch_us / 1e6))
}
