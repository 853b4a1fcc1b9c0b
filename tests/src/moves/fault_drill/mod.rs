//! Fault drills: the same post-copy is interrupted repeatedly, at random times, and must be resumed
//! each time. The results are in the table of `docs/reliability.md`.
//!
//! A time is a fraction of the pages that post-copy has to send: 0.4 is the time when 40 % of the
//! pages that the guest has at the source are at the destination. The times come from a seed that
//! is printed, and that can be set by `HIKKOSHI_SEED`. `HIKKOSHI_DRILLS` is a file for the table;
//! without it, a twelfth of the interruptions is enough.

mod ram_held;
mod random;
mod table;

pub use ram_held::RAM_MIB;
pub use random::Random;

use crate::{Guest, LONG, Migration, MigrationPlan, left_in, log};
use hikkoshi_lab::{GuestReport, Vm};
use ram_held::ram_held;
use random::seed;
use std::ffi::OsString;
use std::sync::PoisonError;
use std::time::{Duration, Instant};
use table::{DONE, Interruption, LINKS, ms, render};

/// The latest time: some pages must still be missing when the engines are killed.
const LATEST: f64 = 0.9;

/// Time between two checks. To look at private memory takes QEMU's lock of its mappings for a
/// millisecond.
const POLL: Duration = Duration::from_millis(5);

/// Maximum number of migrations of a drill: on a slow machine a migration may end before all of its
/// interruptions, or between the chosen time and the interruption.
const MAX_MIGRATIONS: u32 = 8;

/// A series of interruptions.
#[derive(Debug)]
pub struct FaultDrill {
    what: &'static str,
    random: Random,
    done: Vec<Interruption>,
}

impl FaultDrill {
    /// A drill without interruptions yet.
    pub fn new(what: &'static str) -> Self {
        // Each drill has its own random numbers, independent of which others run.
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

    /// The source of its random numbers.
    pub fn random(&mut self) -> &mut Random {
        &mut self.random
    }

    /// Migrates the guest until it was interrupted `times` times in all, up to `at_once` times per
    /// migration; outside `make drills` a twelfth as often. `each` injects the interruption and
    /// resumes the migration. It returns a description when both engines work together again, or
    /// `None` when the migration ended before it could be interrupted; then another interruption
    /// replaces it. The guest must be healthy after each migration.
    ///
    /// # Panics
    /// When a check fails.
    pub fn run(
        &mut self,
        guest: &mut Guest<'_>,
        (times, at_once): (usize, usize),
        mut plan: impl FnMut(u32) -> MigrationPlan,
        mut each: impl FnMut(&mut Migration, &mut Random) -> Option<String>,
    ) {
        let (times, at_once) = match table_path() {
            Some(_) => (times, at_once),
            None => (times.div_ceil(12), at_once.div_ceil(3)),
        };
        let wanted = self.done.len() + times;
        for number in 0..MAX_MIGRATIONS {
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
        let mut breakpoints: Vec<_> = (0..times).map(|_| self.random.part() * LATEST).collect();
        breakpoints.sort_by(f64::total_cmp);
        let links = LINKS[usize::from(plan.is_encrypted())];
        let mut migration = guest.start_migration(plan);
        migration.receive.wait_stderr("the guest runs here now");
        // Pages that were there before are not counted.
        let before = ram_held(&migration.destination);
        let to_come = ram_held(guest.vm()) - before;
        assert!(to_come > 0.0, "{before} KiB were there before");
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
            let waited = wait_for_recovery(&migration.destination, lines);
            log(format!(
                "{}, {links}: {how} at {:.0} %: outage {:.0} ms, guest waited {:.0} ms",
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
            log(format!("{}: ended before it was interrupted", self.what));
            migration.finish_after_success();
            let (_, finished) = migration.wait();
            guest.move_to_destination(finished, self.what);
        } else {
            let (exits, finished) = migration.wait();
            guest.complete_resumed_migration(&exits, finished, self.what);
        }
        for folder in journals {
            let left = left_in(&folder);
            assert!(left.is_empty(), "journals left: {left:?}");
        }
    }

    /// Adds the drill to the table.
    ///
    /// # Panics
    /// When the file for the table cannot be written.
    pub fn finish(self) {
        let table = {
            let mut all = DONE.lock().unwrap_or_else(PoisonError::into_inner);
            all.insert(self.what, self.done);
            render(&all)
        };
        if let Some(path) = table_path() {
            std::fs::write(path, table).unwrap();
        }
    }
}

/// The file for the table, in `make drills`.
pub(crate) fn table_path() -> Option<OsString> {
    std::env::var_os("HIKKOSHI_DRILLS")
}

impl Migration {
    /// Waits until this fraction of the pages has arrived, according to the destination's RAM, and
    /// returns the fraction found; `None` when an engine has exited first.
    fn wait_arrived(&mut self, (before, to_come): (f64, f64), part: f64) -> Option<f64> {
        let deadline = Instant::now() + LONG;
        loop {
            if self.migrate.has_exited() || self.receive.has_exited() {
                return None;
            }
            let now = (ram_held(&self.destination) - before) / to_come;
            if now >= part {
                return Some(now);
            }
            assert!(
                Instant::now() < deadline,
                "{now} of the pages have arrived, not {part}; migrate: {}; receive: {}",
                self.migrate.stderr(),
                self.receive.stderr()
            );
            std::thread::sleep(POLL);
        }
    }
}

/// Waits for two more reports of the guest. Returns the longest time since console line `first` in
/// which the guest made no progress: in an access to a page, or between two reports beyond the
/// usual interval. All times are by the guest's clock.
fn wait_for_recovery(vm: &Vm, first: usize) -> Duration {
    let mut reports = 0;
    let (mut spans, mut touch_us) = (Vec::new(), 0.0f64);
    let now = vm.console().len();
    vm.wait_report("work after an interruption", now, LONG, |report| {
        reports += u32::from(matches!(report, GuestReport::Verify(_)));
        (reports == 2).then_some(())
    })
    .unwrap();
    for line in vm.console().since(first) {
        if let GuestReport::Verify(verify) = &line.report
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
