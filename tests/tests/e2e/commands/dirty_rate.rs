//! `hikkoshi dirty-rate`: what it reports is what the guest has written, and the guest stays as it
//! is.
#![allow(clippy::unwrap_used)] // a test's failure is the message

use hikkoshi_lab::{GuestReport, Pattern, Ram, RamBackend, Vm, VmConfig, Workload};
use hikkoshi_tests::{
    Exit, Guest, JsonSchema, LONG, MigrationPlan, Program, QemuState, TestEnv, assert_refused,
    hikkoshi, log,
};
use serde_json::Value;
use std::process::Command;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// How often a guest is measured. The median error counts: on a busy host the guest may write
/// unevenly, or print its count late, in some of them.
const MEASUREMENTS: usize = 5;

/// The allowed error of what a sample was extrapolated to: what `hikkoshi estimate` assumes
/// (`SAMPLING_ERROR`).
const SAMPLING_ERROR: f64 = 0.25;

/// Writes a second, if the host lets the guest do as many.
const RATE: f64 = 20_000.0;

/// Pages of the region that the guest writes to: 64 MiB.
const PAGES: f64 = 16384.0;

/// A guest that writes one word to each page of its region in turn, or at random.
fn writer(pattern: Pattern) -> VmConfig {
    let workload = Workload::dirty(64).pattern(pattern).rate(20_000);
    VmConfig::new().workload(workload.option("every_ms", 100))
}

fn command(vm: &Vm, more: &[&str]) -> Command {
    let mut command = Command::new(hikkoshi());
    command.args(["dirty-rate", "--qmp"]).arg(vm.qmp_path());
    command.args(more);
    command
}

fn start(vm: &Vm, more: &[&str]) -> Program {
    let program = Program::start("dirty-rate", command(vm, more));
    program.wait_stderr("measuring for");
    program
}

/// The JSON of a measurement, which must be as published.
fn result(exit: &Exit) -> Value {
    assert_eq!(exit.code, Some(0), "{exit:?}");
    JsonSchema::published().assert("dirty_rate", exit.stdout.trim())
}

/// Measures the guest, which must be as before.
fn measure(vm: &Vm, more: &[&str]) -> Value {
    let before = QemuState::of_vm(vm);
    let all: Vec<&str> = [&["--json", "-"], more].concat();
    let found = result(&Program::start("dirty-rate", command(vm, &all)).wait());
    before.assert_unchanged(vm);
    found
}

/// A number of a measurement, beside what the guest says.
///
/// The guest's kernel and programs write some 1,000 pages a second besides, whatever the workload
/// does. So the error is a part of what the workload writes at its full rate, which it does not
/// reach on a busy host.
struct Compared {
    what: String,
    found: f64,
    /// By the pages that the workload has written.
    expected: f64,
    /// By the pages that the workload has written at its full rate.
    full: f64,
    /// The allowed error, as a part of `full`.
    part: f64,
}

impl Compared {
    /// `pages`: of the number of pages that are written in a second.
    fn new(what: &str, found: f64, written: f64, part: f64, pages: impl Fn(f64) -> f64) -> Self {
        Self {
            what: what.to_owned(),
            found,
            expected: pages(written),
            full: pages(f64::max(written, RATE)),
            part,
        }
    }

    fn error(&self) -> f64 {
        (self.found - self.expected).abs() / self.full
    }
}

/// Measures the guest several times, and compares numbers of the JSON with how many pages a second
/// the guest has written meanwhile, by its own count: the median error of each number must be
/// within what it allows. Returns the last JSON.
fn measure_writer(vm: &Vm, more: &[&str], compare: impl Fn(&Value, f64) -> Vec<Compared>) -> Value {
    let mut all = Vec::new();
    let mut last = Value::Null;
    for _ in 0..MEASUREMENTS {
        let (found, written) = measure_with(vm, more);
        all.push(compare(&found, written));
        last = found;
    }
    for index in 0..all[0].len() {
        let mut values: Vec<_> = all.iter().map(|values| &values[index]).collect();
        values.sort_by(|one, other| one.error().total_cmp(&other.error()));
        let shown: Vec<_> = values
            .iter()
            .map(|value| format!("{:.0} of {:.0}", value.found, value.expected))
            .collect();
        let middle = values[MEASUREMENTS / 2];
        let text = format!(
            "{}: median error {:.1} %, allowed {:.0} %: {}",
            middle.what,
            middle.error() * 100.0,
            middle.part * 100.0,
            shown.join(", ")
        );
        assert!(middle.error() <= middle.part, "{text}");
        log(text);
    }
    last
}

/// Measures the guest: the JSON, and how many pages a second it has written in that time.
fn measure_with(vm: &Vm, more: &[&str]) -> (Value, f64) {
    let found = measure(vm, more);
    let ended = UNIX_EPOCH + Duration::from_millis(found["ended_unix_ms"].as_u64().unwrap());
    let ended = Instant::now() - SystemTime::now().duration_since(ended).unwrap();
    let seconds = number(&found["seconds"]);
    let began = ended - Duration::from_secs_f64(seconds);
    // Until the report of the interval in which it ended has arrived, also if it is late.
    let next = vm.console().len();
    let mut reports = 0;
    let enough = |report: &GuestReport| {
        reports += u32::from(matches!(report, GuestReport::Dirty(_)));
        (reports == 3).then_some(())
    };
    vm.wait_report("three reports", next, LONG, enough).unwrap();
    (found, accesses(vm, began, ended) / seconds)
}

/// The accesses that the guest has counted from `began` to `ended`. Each report says in which time
/// of the guest's clock they were; one that is only partly in that time counts in part, because the
/// guest writes evenly in a tenth of a second. The report that arrived fastest tells how the clocks
/// differ: a busy host prints others late.
fn accesses(vm: &Vm, began: Instant, ended: Instant) -> f64 {
    let lines = vm.console().lines();
    let reports: Vec<_> = lines
        .iter()
        .filter_map(|line| match &line.report {
            GuestReport::Dirty(report) => Some((line.at, report)),
            _ => None,
        })
        .collect();
    let zero = reports[0].0;
    let since = |at: Instant| at.saturating_duration_since(zero).as_secs_f64();
    let differs = reports.iter().map(|(at, report)| since(*at) - report.t);
    let differs = differs.fold(f64::INFINITY, f64::min);
    let (began, ended) = (since(began), since(ended));
    let counted = reports.iter().map(|(_, report)| {
        let (to, span) = (report.t + differs, report.span_ms as f64 / 1e3);
        let inside = to.min(ended) - (to - span).max(began);
        report.latency.accesses as f64 * (inside / span).clamp(0.0, 1.0)
    });
    counted.sum()
}

fn number(value: &Value) -> f64 {
    value
        .as_f64()
        .unwrap_or_else(|| panic!("{value} is not a number"))
}

/// The mean working set of the window of this length, and how long these windows were.
fn working_set(found: &Value, window_ms: f64) -> (f64, f64) {
    let sets = found["total"]["working_sets"].as_array().unwrap();
    let set = sets
        .iter()
        .find(|set| number(&set["window_ms"]) == window_ms);
    let set = set.unwrap_or_else(|| panic!("no {window_ms} ms in {found}"));
    (
        number(&set["mean_pages"]),
        number(&set["mean_window_ms"]) / 1e3,
    )
}

const ALL: [&str; 4] = ["--max-cost", "100", "--seconds", "2"];

/// Each page is written once before the first one is written again, so that the pages of a window
/// are the writes in it, until the region ends.
#[test]
#[ignore = "part of `make test-rates`"]
fn a_guest_that_writes_in_turn() {
    let env = TestEnv::new();
    let config = writer(Pattern::Sequential).arguments(["-device", "VGA"]);
    let mut guest = Guest::boot(&env, config);
    let vm = guest.vm().clone();
    let found = measure_writer(&vm, &ALL, |found, written| {
        let rate = &found["total"]["pages_per_second"];
        let mean = number(&rate["mean"]);
        let median = number(&rate["median"]);
        let (half, seconds) = working_set(found, 500.0);
        let (all, all_seconds) = working_set(found, 2000.0);
        let region = |rate: f64| f64::min(rate * all_seconds, PAGES);
        vec![
            Compared::new("the mean rate", mean, written, 0.1, |rate| rate),
            Compared::new("the median rate", median, written, 0.1, |rate| rate),
            Compared::new("half a second", half, written, 0.1, |rate| rate * seconds),
            Compared::new("the region", all, written, 0.1, region),
        ]
    });
    assert_eq!(found["map"], Value::Null);
    assert_eq!(found["cancelled"], false);

    // A part of the memory, extrapolated.
    let sampled = ["--max-cost", "0.5", "--seconds", "2", "--map"];
    let found = measure_writer(&vm, &sampled, |found, written| {
        let rate = number(&found["total"]["pages_per_second"]["mean"]);
        let what = "the rate of a sample";
        vec![Compared::new(what, rate, written, SAMPLING_ERROR, |rate| {
            rate
        })]
    });
    let total = &found["total"];
    assert!(
        number(&total["measured_bytes"]) < 0.9 * number(&total["bytes"]),
        "{found}"
    );
    assert!(!found["map"].as_array().unwrap().is_empty());

    // Only video memory, which this guest does not write to. Writes to the rest cost nothing.
    let video = [
        "--block",
        "vga.vram",
        "--seconds",
        "0.3",
        "--max-cost",
        "100",
    ];
    let found = measure(&vm, &video);
    assert_eq!(found["total"]["bytes"], 16 << 20, "{found}");
    assert_eq!(found["total"]["measured_bytes"], 16 << 20, "{found}");
    assert_eq!(found["cost"]["faults_per_second"], 0.0, "{found}");

    ended_early(&vm);
    killed(&mut guest);
}

/// Ctrl-C ends it with what was measured; another command is refused until then.
fn ended_early(vm: &Vm) {
    let before = QemuState::of_vm(vm);
    let mut program = start(vm, &["--json", "-", "--seconds", "1000"]);
    let qmp = vm.qmp_path().to_str().unwrap();
    assert_refused(&["dirty-rate", "--qmp", qmp], 1, &["or measuring it"]);
    program.interrupt();
    let found = result(&program.wait());
    assert_eq!(found["cancelled"], true, "{found}");
    assert!(
        number(&found["total"]["pages_per_second"]["mean"]) > 0.0,
        "{found}"
    );
    before.assert_unchanged(vm);
}

/// A killed one leaves its log, which `migrate` closes.
fn killed(guest: &mut Guest<'_>) {
    let mut program = start(guest.vm(), &["--seconds", "1000"]);
    program.kill();
    program.wait();
    assert!(!QemuState::of_vm(guest.vm()).has_no_userfaultfd());
    guest.assert_healthy();
    let report = guest.migrate(&MigrationPlan::new("precopy"));
    assert!(report.rounds > 0, "{report:?}");
}

/// Private memory: a window of `t` finds `n (1 - e^(-w t / n))` of `n` pages of which `w` are
/// written a second at random.
#[test]
#[ignore = "one of its kind runs in CI: make test-rates"]
fn a_guest_that_writes_at_random() {
    let env = TestEnv::new();
    let ram = Ram::new(RamBackend::Anonymous, 256);
    let guest = Guest::boot(&env, writer(Pattern::Random).ram(ram));
    measure_writer(guest.vm(), &ALL, |found, written| {
        let window = |window_ms| {
            let (pages, seconds) = working_set(found, window_ms);
            let what = format!("a window of {window_ms} ms");
            let different = |rate: f64| PAGES * (1.0 - (-rate * seconds / PAGES).exp());
            Compared::new(&what, pages, written, 0.1, different)
        };
        [100.0, 500.0, 1000.0].map(window).into()
    });
    guest.assert_healthy();
}

/// A tenth of the region gets nine of ten writes.
#[test]
#[ignore = "part of `make test-rates`"]
fn a_hot_spot_is_named() {
    let env = TestEnv::new();
    let guest = Guest::boot(&env, writer(Pattern::Hotspot));
    let found = measure(guest.vm(), &[&ALL[..], &["--map"]].concat());
    let hot = found["hot_ranges"].as_array().unwrap();
    let sum = |member| hot.iter().map(|range| number(&range[member])).sum::<f64>();
    let total = number(&found["total"]["pages_per_second"]["mean"]);
    assert!(sum("pages_per_second") > 0.6 * total, "{found}");
    assert!(sum("bytes") < 0.3 * PAGES * 4096.0, "{found}");
    for range in hot {
        assert_eq!(range["block"], "ram", "{found}");
        // The address of a byte of the first gigabytes is its offset.
        assert_eq!(range["guest_address"], range["offset"], "{found}");
    }
    let map = found["map"].as_array().unwrap();
    let bytes: f64 = map.iter().map(|range| number(&range["bytes"])).sum();
    assert_eq!(bytes, number(&found["total"]["bytes"]), "{found}");
}

#[test]
fn a_guest_that_does_not_run() {
    let env = TestEnv::new();
    let config = writer(Pattern::Random).arguments(["-S"]);
    let guest = Guest::start(&env, config);
    let vm = guest.vm();
    let found = measure(vm, &["--seconds", "0.3"]);
    assert_eq!(found["total"]["pages_per_second"]["max"], 0.0, "{found}");
    assert_eq!(
        found["hot_ranges"].as_array().map(Vec::len),
        Some(0),
        "{found}"
    );
    let qmp = vm.qmp_path().to_str().unwrap();
    let refused = |more: &[&str], code, part| {
        let all = [&["dirty-rate", "--qmp", qmp], more].concat();
        assert_refused(&all, code, &[part]);
    };
    refused(&["--block", "nothing"], 2, "no RAM block \"nothing\"");
    refused(&["--seconds", "0.01"], 2, "shorter than one interval");
    refused(
        &["--interval", "1", "--seconds", "66"],
        2,
        "use a longer interval",
    );
    // QEMU ends while it is measured.
    let mut program = start(vm, &["--seconds", "1000"]);
    vm.kill();
    program.wait().assert(1, &["has ended"]);
}
