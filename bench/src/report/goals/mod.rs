//! The project's goals: whether they are reached, and what limits those that are missed.

mod goal;
mod guests;
mod rules;

use self::goal::{Goal, Limit};
use self::rules::{NOT_MEASURED, Rules};
use super::medians::rows;
use super::table_format::Table;
use crate::record::Run;

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
                Some(value) if goal.reached => {
                    ("reached", format!("{value:.digits$} {}", goal.unit))
                }
                Some(value) => ("MISSED", format!("{value:.digits$} {}", goal.unit)),
                None => (NOT_MEASURED, "-".to_owned()),
            };
            vec![
                goal.what.clone(),
                verdict.to_owned(),
                value,
                format!("{sign} {limit} {}", goal.unit),
                goal.shown_by.clone(),
            ]
        })
        .collect();
    Table {
        title: "Goals".to_owned(),
        head: vec!["goal", "", "measured", "limit", "details"],
        words: true,
        lines,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::meter::{Accesses, Gaps};
    use crate::plan::{System, Variant, Workload};
    use crate::record::{ClientsOutcome, ScanOutcome, test_run as run};
    use serde_json::json;

    fn reached(runs: &[Run]) -> Vec<(String, bool)> {
        let goals = goals(runs).into_iter();
        goals.map(|goal| (goal.what, goal.reached)).collect()
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
        ours.report = json!({ "request_stages_us": {
            "fault_to_request": { "mean": 10.0 },
            "request_to_page": { "mean": 200.0 },
            "page_to_installed": { "mean": 20.0 },
        }});
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
        assert!(goals.iter().all(|goal| !goal.reached), "{goals:?}");
        let text = goals_table(&runs).text();
        assert!(text.contains("not measured to 2000.0 µs"), "{text}");
        assert!(!text.contains("MISSED"), "{text}");
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
        assert!(!goals[0].reached && (goals[0].value.unwrap() - 1.8).abs() < 1e-9);
        let bound = "the line carries 29649 pages a second, less than the goal";
        assert!(goals[0].shown_by.ends_with(bound), "{}", goals[0].shown_by);
    }
}
