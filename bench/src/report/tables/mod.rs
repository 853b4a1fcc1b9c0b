//! Tables of medians.

mod growth;
mod labels;
mod moves;
mod nano;
mod others;
mod policies;

use self::growth::growth;
use self::moves::moves;
use self::nano::{nano_scans, nano_tasks, nano_walks, timelines};
use self::others::{clients, disks, fills, scans, web};
use self::policies::policies;
use super::medians::{Row, rows};
use super::table_format::Table;
use crate::plan::{Kind, Workload};
use crate::record::Run;

/// Every table that the runs have numbers for.
pub(crate) fn tables(runs: &[Run]) -> Vec<Table> {
    let rows = rows(runs);
    let mut groups: Vec<Vec<&Row>> = Vec::new();
    for row in &rows {
        let same = |group: &&mut Vec<&Row>| {
            let first = group.first().map(|first| (&first.network, &first.workload));
            first == Some((&row.network, &row.workload))
        };
        match groups.iter_mut().find(same) {
            Some(group) => group.push(row),
            None => groups.push(vec![row]),
        }
    }
    let mut tables = Vec::new();
    for group in &groups {
        let Some(first) = group.first() else { continue };
        match first.case.workload {
            // They are in tables of their own.
            Workload::Fill
            | Workload::Grow(_)
            | Workload::NanoTasks(_)
            | Workload::NanoWalk(_)
            | Workload::NanoTimeline => {}
            Workload::NanoScan => tables.push(nano_scans(group)),
            load if load.kind() == Kind::Scan => tables.push(scans(group)),
            load if load.disk_bytes_per_second().is_some() => tables.push(disks(group)),
            load if matches!(load.kind(), Kind::Clients | Kind::Domain) => {
                tables.push(clients(group, runs));
            }
            load if load.kind() == Kind::Web => tables.push(web(group, runs)),
            _ => tables.extend(moves(group)),
        }
    }
    tables.extend(groups.iter().filter_map(|group| policies(group)));
    tables.extend(fills(&rows));
    tables.extend(growth(&rows));
    tables.extend(nano_tasks(&rows));
    tables.extend(nano_walks(&rows));
    tables.extend(timelines(runs));
    tables
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::meter::{DiskOutcome, Span};
    use crate::plan::{System, Variant};
    use crate::record::{WebOutcome, test_report, test_run as run};
    use hikkoshi_account::SwitchoverStep;

    fn text(runs: &[Run]) -> String {
        tables(runs).iter().map(Table::text).collect()
    }

    #[test]
    fn a_failed_run_counts_as_failed_and_not_as_a_number() {
        let mut failed = run(System::QemuPrecopy, Workload::Paced(5), 9000.0, 1.0);
        failed.failure = Some("broken".to_owned());
        let runs = [
            run(System::HikkoshiPrecopy, Workload::Paced(5), 20.0, 1000.0),
            run(System::QemuPrecopy, Workload::Paced(5), 200.0, 2000.0),
            failed,
        ];
        let rows = rows(&runs);
        assert_eq!((rows[1].runs, rows[1].failed), (1, 1));
        assert_eq!(rows[1].downtime_ms, Some(200.0));
        let text = text(&runs);
        assert!(text.contains("precopy / qemu-precopy"), "{text}");
        assert!(text.contains("0.10x") && text.contains("0.50x"), "{text}");
        assert!(text.contains("(1 failed)"), "{text}");
    }

    #[test]
    fn variants_are_compared_in_a_table_of_their_own() {
        let plain = run(System::HikkoshiHybrid, Workload::Busy, 20.0, 1000.0);
        let mut case = plain.case;
        case.variant = Variant::NoHotFirst;
        let mut other = Run::new(&case, 0);
        other.total_ms = Some(1500.0);
        let tables = tables(&[plain, other]);
        assert_eq!(tables.len(), 2);
        assert_eq!(tables[0].lines.len(), 1, "{}", tables[0].text());
        let text = tables[1].text();
        assert!(text.contains("hikkoshi-hybrid/no-hot-first"), "{text}");
        assert!(text.contains("1.50x"), "{text}");
    }

    #[test]
    fn the_steps_of_the_switchover_are_shown_by_the_size_of_the_guest() {
        let mut grown = run(System::HikkoshiHybrid, Workload::Grow(8), 9.0, 1000.0);
        grown.report = test_report(|account| {
            account.switchover = vec![SwitchoverStep {
                step: "paused".into(),
                at_ms: 0.52,
            }];
        });
        let text = text(&[grown]);
        assert!(text.contains("grow-8 hikkoshi-hybrid"), "{text}");
        assert!(text.contains("paused 0.5"), "{text}");
    }

    #[test]
    fn a_disk_table_shows_rate_and_lost_pages() {
        let mut lost = run(System::HikkoshiPrecopy, Workload::Disk20, 20.0, 1000.0);
        lost.case.variant = Variant::NoDrain;
        lost.disk = Some(DiskOutcome {
            before: Some(20e6),
            during: Some(19.5e6),
            bad_pages: 192,
            ..Default::default()
        });
        let tables = tables(&[lost]);
        assert_eq!(tables.len(), 1, "it is not a policy");
        let text = tables[0].text();
        assert!(text.contains("hikkoshi-precopy/no-drain"), "{text}");
        assert!(text.contains(" 19.5 ") && text.contains(" 192 "), "{text}");
    }

    #[test]
    fn response_times_are_medians_over_the_runs() {
        let times = [
            [100.0, 400.0, 700.0],
            [300.0, 500.0, 800.0],
            [200.0, 600.0, 900.0],
        ];
        let served = |until_end| {
            let mut served = run(System::HikkoshiHybrid, Workload::Web, 20.0, 1000.0);
            served.web = Some(WebOutcome {
                until_end,
                ..Default::default()
            });
            served
        };
        let span = |[p50_ms, p99_ms, max_ms]: [f64; 3]| Span {
            answers: 1,
            p50_ms,
            p99_ms,
            max_ms,
        };
        let mut runs: Vec<_> = times.map(|times| served(Some(span(times)))).into();
        let mut failed = served(Some(span([1.0, 2.0, 3.0])));
        failed.failure = Some("broken".to_owned());
        // A move in which nothing was answered then has no times.
        runs.extend([failed, served(None)]);
        let text = text(&runs);
        assert!(text.contains("200 / 500 / 800"), "{text}");
    }

    #[test]
    fn used_fraction_of_the_network_is_shown() {
        let mut filled = run(System::HikkoshiPostcopy, Workload::Fill, 10.0, 1000.0);
        filled.throughput = Some(120e6);
        let tables = tables(&[filled]);
        assert_eq!(tables.len(), 1);
        assert!(tables[0].text().contains(" 96.0 "), "{}", tables[0].text());
    }
}
