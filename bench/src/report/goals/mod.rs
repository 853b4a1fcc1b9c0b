//! The project's goals: whether they are reached, and what limits those that are missed.

mod goal;
mod guests;
mod nano;
mod rules;

use self::goal::{Goal, Limit};
use self::rules::{NOT_MEASURED, Rules};
use super::medians::rows;
use super::table_format::Table;
use crate::record::Run;

/// A goal counts as reached only by medians of at least so many runs.
const LEAST_RUNS: usize = 3;

/// Every goal that the runs have numbers for.
pub(super) fn goals(runs: &[Run]) -> Vec<Goal> {
    let rows = rows(runs);
    Rules::new(&rows).evaluate()
}

/// The goals as a table.
pub(crate) fn goals_table(runs: &[Run]) -> Table {
    let lines = goals(runs)
        .iter()
        .map(|goal| {
            let digits = if goal.unit == "x" { 2 } else { 3 };
            let (sign, limit) = match goal.limit {
                Limit::AtMost(limit) => ("at most", limit),
                Limit::Below(limit) => ("below", limit),
                Limit::AtLeast(limit) => ("at least", limit),
            };
            let (verdict, value) = match goal.value {
                Some(value) => {
                    let verdict = match goal.within_limit {
                        true if goal.runs >= LEAST_RUNS => "reached",
                        true => "too few runs",
                        false => "MISSED",
                    };
                    (verdict, format!("{value:.digits$} {}", goal.unit))
                }
                None => (NOT_MEASURED, "-".to_owned()),
            };
            vec![
                goal.what.clone(),
                verdict.to_owned(),
                goal.runs.to_string(),
                value,
                format!("{sign} {limit} {}", goal.unit),
                goal.shown_by.clone(),
            ]
        })
        .collect();
    Table {
        title: "Goals".to_owned(),
        head: vec!["goal", "", "runs", "measured", "limit", "details"],
        words: true,
        lines,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::meter::{Accesses, Gaps, GuestAccount, GuestInterval};
    use crate::plan::{System, Variant, Workload};
    use crate::record::{ClientsOutcome, ScanOutcome, test_report, test_run as run};

    fn reached(runs: &[Run]) -> Vec<(String, bool)> {
        let goals = goals(runs).into_iter();
        goals.map(|goal| (goal.what, goal.within_limit)).collect()
    }

    fn busy(system: System, load: Workload, mean_us: f64, accesses: f64, total_ms: f64) -> Run {
        let mut run = run(system, load, 20.0, total_ms);
        run.accesses = Some(Accesses {
            slow: 100,
            slow_mean_us: mean_us,
            max_us: 9e3,
            slow_p50_below_us: None,
            slow_p99_below_us: None,
            per_second: Some(accesses / 5.0),
            completed: Some(accesses),
            histogram: Vec::new(),
        });
        run
    }

    #[test]
    fn downtimes_are_compared_with_qemus() {
        let runs = [
            run(System::HikkoshiHybrid, Workload::Busy, 40.0, 1.0),
            run(System::HikkoshiPrecopy, Workload::Paced(7), 160.0, 5000.0),
            run(System::QemuPrecopy, Workload::Paced(7), 200.0, 6000.0),
        ];
        let goals = reached(&runs).into_iter();
        let of_time = goals.filter(|goal| goal.0.contains("qemu-precopy"));
        let reached: Vec<_> = of_time.map(|goal| goal.1).collect();
        assert_eq!(reached, [false, true, true]);
        assert!(goals_table(&runs).text().contains("MISSED"));
    }

    #[test]
    fn a_goal_is_not_reached_by_two_runs() {
        let runs = [
            run(System::HikkoshiPrecopy, Workload::Paced(7), 160.0, 5000.0),
            run(System::QemuPrecopy, Workload::Paced(7), 200.0, 6000.0),
        ];
        let total = |ours: usize, theirs: usize| {
            let ours = vec![runs[0].clone(); ours];
            let theirs = vec![runs[1].clone(); theirs];
            let goals = goals_table(&[ours, theirs].concat());
            let mut lines = goals.lines.into_iter();
            let line = lines.find(|line| line[0].contains("total time")).unwrap();
            [line[1].clone(), line[2].clone()]
        };
        assert_eq!(total(3, 4), ["reached", "3"]);
        assert_eq!(total(2, 4), ["too few runs", "2"]);
        assert_eq!(total(4, 2), ["too few runs", "2"]);
    }

    #[test]
    fn private_memory_is_compared_with_shared_files() {
        let runs = [
            busy(System::HikkoshiHybrid, Workload::Busy, 40.0, 1.0, 1000.0),
            busy(System::HikkoshiHybrid, Workload::Private, 50.0, 1.0, 1050.0),
        ];
        let goals = reached(&runs);
        let of = |what: &str| goals.iter().find(|goal| goal.0.contains(what)).unwrap().1;
        assert!(of("total time, hikkoshi-hybrid, private to busy"));
        assert!(!of("mean fault, hikkoshi-hybrid, private to busy"));
    }

    #[test]
    fn a_writing_private_guest_is_compared_with_a_shared_one() {
        let run = |load, total_ms| run(System::HikkoshiPrecopy, load, 4.0, total_ms);
        let shared = run(Workload::Paced(7), 1000.0);
        for (total_ms, expected) in [(1090.0, true), (1110.0, false)] {
            let goals = reached(&[shared.clone(), run(Workload::PrivatePaced(7), total_ms)]);
            let (_, reached) = goals
                .iter()
                .find(|goal| {
                    goal.0 == "1gbit: total time, hikkoshi-precopy, private-paced to paced"
                })
                .unwrap();
            assert_eq!(*reached, expected);
        }
    }

    #[test]
    fn the_debian_guest_has_a_downtime_of_its_own() {
        let debian = |system, ms| run(system, Workload::Debian, ms, 1000.0);
        let runs = [
            debian(System::HikkoshiPrecopy, 14.0),
            debian(System::HikkoshiHybrid, 16.0),
            debian(System::HikkoshiPostcopy, 4.0),
            debian(System::QemuPrecopy, 90.0),
            debian(System::QemuPostcopy, 120.0),
            run(System::HikkoshiHybrid, Workload::Private, 14.0, 1000.0),
        ];
        let goals = goals(&runs);
        for (what, expected, beside) in [
            ("precopy (debian)", true, "qemu-precopy: 90.0 ms"),
            ("hybrid (debian)", false, "qemu-postcopy: 120.0 ms"),
            ("postcopy (debian)", true, "qemu-postcopy: 120.0 ms"),
            ("hybrid (private)", false, "QEMU's was not measured"),
        ] {
            let what = format!("1gbit: downtime, hikkoshi-{what}");
            let goal = goals.iter().find(|goal| goal.what == what).unwrap();
            assert_eq!(
                (goal.within_limit, &*goal.shown_by),
                (expected, beside),
                "{what}"
            );
        }
    }

    #[test]
    fn a_datagram_lost_in_one_run_misses_the_goal() {
        let clients = |gap, lost| {
            let mut run = run(System::HikkoshiPrecopy, Workload::Clients, 4.0, 1.0);
            let gaps = Gaps {
                longest: gap,
                ..Gaps::default()
            };
            run.clients = Some(ClientsOutcome {
                requests: 1,
                request_gaps_ms: gaps,
                datagrams: 1,
                lost,
                repeated: 0,
                datagram_gaps_ms: gaps,
            });
            run
        };
        let goals = reached(&[clients(50.0, 0), clients(59.0, 0), clients(200.0, 1)]);
        let of = |what: &str| goals.iter().find(|goal| goal.0.contains(what)).unwrap().1;
        assert!(of("longest gap between answers to requests"));
        assert!(!of("datagrams lost"));
    }

    #[test]
    fn goals_are_judged_and_list_what_limits_them() {
        let mut ours = busy(
            System::HikkoshiHybrid,
            Workload::Busy,
            300.0,
            6000.0,
            1050.0,
        );
        ours.report = test_report(|account| {
            let stages = &mut account.requests.request_stages_us;
            stages.fault_to_request.mean = 10.0;
            stages.request_to_page.mean = 200.0;
            stages.page_to_installed.mean = 20.0;
        });
        let theirs = busy(System::QemuPreempt, Workload::Busy, 2000.0, 1000.0, 1000.0);
        let huge = [
            busy(System::HikkoshiHybrid, Workload::Huge, 9e3, 1.0, 1.0),
            busy(System::QemuPreempt, Workload::Huge, 20e3, 1.0, 1.0),
        ];
        let runs: Vec<_> = [ours, theirs].into_iter().chain(huge).collect();
        let verdicts = reached(&runs);
        let of = |what: &str| {
            let found = verdicts.iter().find(|goal| goal.0.contains(what));
            found.unwrap_or_else(|| panic!("{what} in {verdicts:?}")).1
        };
        assert!(!of("1gbit: mean fault, hikkoshi-hybrid"));
        assert!(of("1gbit: mean fault, hikkoshi-hybrid to"));
        assert!(of("time until everything is received"));
        assert!(of("accesses completed"));
        assert!(of("2 MiB"));
        let text = goals_table(&runs).text();
        assert!(text.contains("request to page 200.0"), "{text}");
        assert!(text.contains("the guest waits 70 µs more"), "{text}");
        assert!(text.contains("a page takes 33.7 µs"), "{text}");
    }

    #[test]
    fn a_goal_without_a_number_is_listed() {
        let failed = |system| {
            let mut run = run(system, Workload::Busy, 20.0, 1.0);
            run.failure = Some("it did not start".to_owned());
            run
        };
        let theirs = busy(System::QemuPreempt, Workload::Busy, 2000.0, 1000.0, 1000.0);
        let runs = [failed(System::HikkoshiHybrid), theirs];
        let goals = goals(&runs);
        let mean = |goal: &&Goal| goal.what == "1gbit: mean fault, hikkoshi-hybrid";
        assert_eq!(goals.iter().find(mean).unwrap().value, None);
        assert!(goals.iter().all(|goal| !goal.within_limit), "{goals:?}");
        let text = goals_table(&runs).text();
        assert!(text.contains("not measured to 2000.0 µs"), "{text}");
        assert!(!text.contains("MISSED"), "{text}");
    }

    #[test]
    fn asynchronous_faults_must_halve_the_time_of_a_scan() {
        let scan = |async_faults, ms, [ran_ms, idle_ms, stalled_ms]: [f64; 3]| {
            let mut run = run(System::HikkoshiPostcopy, Workload::NanoScan, 1.0, 1.0);
            run.case.async_faults = async_faults;
            run.label = run.case.to_string();
            let interval = GuestInterval {
                ran_ms,
                idle_ms,
                stalled_ms,
                ..GuestInterval::default()
            };
            run.scan = Some(ScanOutcome {
                ms,
                pages: 1000,
                ran: 0.5,
                progress: Vec::new(),
                guest: Some(GuestAccount {
                    intervals: vec![interval],
                }),
            });
            run
        };
        let with = scan(true, 60.0, [47.0, 50.0, 3.0]);
        let without = scan(false, 100.0, [25.0, 0.0, 75.0]);
        let goals = goals(&[with.clone(), without.clone()]);
        let values: Vec<_> = goals.iter().map(|goal| goal.value.unwrap()).collect();
        assert!((values[0] - 0.6).abs() < 1e-9 && (values[1] - 0.94).abs() < 1e-9);
        assert_eq!(goals.len(), 2, "the scan without is not judged by itself");
        assert!(!goals[0].within_limit && goals[1].within_limit);
        assert!(goals[0].shown_by.ends_with("tasks ran 0.47 and 0.25 of it"));
        let table = &crate::report::tables(&[with, without])[0].text();
        assert!(table.contains("0.06  0.60x     47"), "{table}");
    }

    #[test]
    fn read_ahead_must_be_three_times_as_fast() {
        let scan = |variant, ms| {
            let mut run = run(System::HikkoshiPostcopy, Workload::Sequential, 1.0, 1.0);
            run.case.variant = variant;
            run.label = run.case.to_string();
            run.scan = Some(ScanOutcome {
                ms,
                pages: 1000,
                ran: 0.5,
                progress: Vec::new(),
                guest: None,
            });
            run
        };
        let runs = [
            scan(Variant::Plain, 50.0),
            scan(Variant::NoReadAhead, 90.0),
            scan(Variant::ReadAhead8, 10.0),
        ];
        let goals = goals(&runs);
        assert_eq!(goals.len(), 1);
        assert!(!goals[0].within_limit && (goals[0].value.unwrap() - 1.8).abs() < 1e-9);
        let bound = "the line carries 29649 pages a second, less than the goal";
        assert!(goals[0].shown_by.ends_with(bound), "{}", goals[0].shown_by);
    }
}
