//! Titles of tables and names of rows.

use crate::report::medians::Row;

/// The network, the workload, and the number of runs.
pub(super) fn title(group: &[&Row]) -> String {
    let Some(first) = group.first() else {
        return String::new();
    };
    let what = first.case.workload.describe();
    format!("{}, {what}; medians of {}", first.network, runs(group))
}

/// How many runs the rows are of.
pub(super) fn runs(group: &[&Row]) -> String {
    let (least, most) = group.iter().fold((usize::MAX, 0), |(least, most), row| {
        (least.min(row.runs), most.max(row.runs))
    });
    match least == most {
        true => most.to_string(),
        false => format!("{least} to {most}"),
    }
}

/// The system, and how many of its runs failed or did not converge.
pub(super) fn name(row: &Row) -> String {
    let mut name = row.system.clone();
    if row.called_off > 0 {
        name.push_str(" (does not converge)");
    }
    if row.failed > 0 {
        name.push_str(&format!(" ({} failed)", row.failed));
    }
    name
}
