//! The results as a table.

use super::Measured;
use super::guest::Writer;
use super::method::Method;
use crate::report::Table;

/// One measurement as a line of text.
pub(super) fn line(run: &Measured) -> String {
    format!(
        "{}/{}: {:.0} accesses/s ({:.0} undisturbed), {:.1} % of the time in the kernel, {:.0} pages \
         reported, {:.0} expected",
        run.writer,
        run.method,
        run.measured,
        f64::midpoint(run.before, run.after),
        run.kernel_cost() * 100.0,
        run.reported.pages,
        run.expected_pages
    )
}

/// The medians of all rounds.
pub(super) fn table(all: &[Measured]) -> Table {
    let mut lines = Vec::new();
    for writer in Writer::ALL {
        for method in Method::ALL {
            let runs: Vec<_> = all
                .iter()
                .filter(|run| (run.writer, run.method) == (writer, method))
                .collect();
            if runs.is_empty() {
                continue;
            }
            let median = |value: &dyn Fn(&Measured) -> Option<f64>| {
                let mut values: Vec<f64> = runs.iter().filter_map(|run| value(run)).collect();
                values.sort_by(f64::total_cmp);
                values.get(values.len() / 2).copied()
            };
            let percent = |value: Option<f64>| number(value.map(|value| value * 100.0), 1);
            lines.push(vec![
                format!("{writer}, {method}"),
                percent(median(&|run| Some(run.lost()))),
                percent(median(&|run| Some(1.0 - run.after / run.before))),
                percent(median(&|run| Some(run.kernel_cost()))),
                percent(median(&|run| run.reported.stated_cost)),
                percent(median(&|run| run.reported.measured_part)),
                number(median(&|run| run.reported.faults_per_second), 0),
                number(median(&fault_us), 2),
                number(median(&|run| Some(run.expected_pages)), 0),
                number(median(&|run| Some(run.reported.pages)), 0),
                percent(median(&|run| {
                    Some(run.reported.pages / run.expected_pages - 1.0)
                })),
            ]);
        }
    }
    Table {
        title: "What measuring a guest costs it, and how accurate it is".to_owned(),
        head: vec![
            "guest, measured by",
            "throughput lost, %",
            "afterwards, %",
            "in the kernel, %",
            "stated, %",
            "memory measured, %",
            "faults/s",
            "µs a fault",
            "pages written in 3 s",
            "reported",
            "error, %",
        ],
        words: false,
        lines,
    }
}

/// What a fault has cost the guest, µs: everything that it has lost, divided by its faults. A paced
/// guest does not lose anything that it does not make up for.
fn fault_us(run: &Measured) -> Option<f64> {
    let faults = run.reported.faults_per_second?;
    (run.writer != Writer::Paced && faults > 1000.0).then(|| run.lost() * 1e6 / faults)
}

fn number(value: Option<f64>, digits: usize) -> String {
    value.map_or("-".to_owned(), |value| format!("{value:.digits$}"))
}
