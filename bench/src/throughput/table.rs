//! The results as tables.

use super::Sizes;
use super::moved::Moved;
use crate::report::Table;

/// One move as a line of text.
pub(super) fn line(moved: &Moved) -> String {
    format!(
        "{}: {:.0} MiB/s, {:.2} s of processor time a GiB ({:.2} by QEMU), total {:.2} s, downtime \
         {:.1} ms, others {:.2}",
        moved.case,
        moved.mib_per_second,
        moved.cpu_seconds_per_gib,
        moved.qemu_cpu_seconds_per_gib,
        moved.total_s,
        moved.downtime_ms,
        moved.others_cores,
    )
}

/// The medians of all rounds, with the least and the greatest: a table for each setting.
pub(super) fn tables(all: &[Moved], sizes: Sizes) -> Vec<Table> {
    let mut settings: Vec<_> = all.iter().map(|moved| moved.case.setting()).collect();
    settings.dedup();
    settings.sort();
    settings.dedup();
    let table = |setting: String| Table {
        title: format!("{} MiB, {setting}", sizes.filled_mib),
        head: vec![
            "moved by",
            "MiB/s",
            "CPU s a GiB",
            "by QEMU",
            "total, s",
            "downtime, ms",
            "sent, MiB",
            "moves",
        ],
        words: false,
        lines: rows(all, &setting),
    };
    settings.into_iter().map(table).collect()
}

fn rows(all: &[Moved], setting: &str) -> Vec<Vec<String>> {
    let of_setting: Vec<_> = all
        .iter()
        .filter(|moved| moved.case.setting() == setting)
        .collect();
    let mut systems = Vec::new();
    for moved in &of_setting {
        if !systems.contains(&moved.case.system) {
            systems.push(moved.case.system);
        }
    }
    let row = |system| {
        let moves: Vec<_> = of_setting
            .iter()
            .filter(|moved| moved.case.system == system)
            .collect();
        let median = |value: &dyn Fn(&Moved) -> f64, digits: usize| {
            let mut values: Vec<f64> = moves.iter().map(|moved| value(moved)).collect();
            values.sort_by(f64::total_cmp);
            match values.as_slice() {
                [] => "-".to_owned(),
                [only] => format!("{only:.digits$}"),
                [least, .., most] => format!(
                    "{:.digits$} ({least:.digits$} to {most:.digits$})",
                    values.get(values.len() / 2).copied().unwrap_or_default()
                ),
            }
        };
        #[allow(clippy::cast_precision_loss)] // far below 2^52
        let sent = |moved: &Moved| moved.bytes as f64 / f64::from(1 << 20);
        vec![
            system.to_string(),
            median(&|moved| moved.mib_per_second, 0),
            median(&|moved| moved.cpu_seconds_per_gib, 2),
            median(&|moved| moved.qemu_cpu_seconds_per_gib, 2),
            median(&|moved| moved.total_s, 2),
            median(&|moved| moved.downtime_ms, 1),
            median(&sent, 0),
            moves.len().to_string(),
        ]
    };
    systems.into_iter().map(row).collect()
}
