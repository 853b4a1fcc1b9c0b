//! The results as a table.

use super::guest::{WRITE_KIB, WRITES};
use super::{Moved, Sizes, System};
use crate::report::Table;

/// One move as a line of text.
pub(super) fn line(moved: &Moved) -> String {
    let writes = |of: Option<super::Writes>| match of {
        Some(of) => format!("{:.0} writes/s of {:.2} ms", of.per_second, of.mean_ms),
        None => "not known".to_owned(),
    };
    format!(
        "{}: total {:.2} s, downtime {:.1} ms, longest gap {:.0} ms, before {}, during {} (highest \
         mean {:.2} ms)",
        moved.system.name(),
        moved.total_ms / 1e3,
        moved.downtime_ms,
        moved.clients.request_gaps_ms.longest,
        writes(moved.before),
        writes(moved.during),
        moved.during.map_or(0.0, |of| of.highest_mean_ms),
    )
}

/// The medians of all rounds.
pub(super) fn table(all: &[Moved], sizes: Sizes) -> Table {
    let row = |system: System| {
        let moves: Vec<_> = all.iter().filter(|moved| moved.system == system).collect();
        let median = |value: &dyn Fn(&Moved) -> Option<f64>, digits: usize| {
            let mut values: Vec<f64> = moves.iter().filter_map(|moved| value(moved)).collect();
            values.sort_by(f64::total_cmp);
            let median = values.get(values.len() / 2);
            median.map_or("-".to_owned(), |value| format!("{value:.digits$}"))
        };
        #[allow(clippy::cast_precision_loss)] // far below 2^52
        let lost = |moved: &Moved| moved.clients.lost as f64;
        let mib = f64::from(1 << 20);
        #[allow(clippy::cast_precision_loss)]
        let sent = |moved: &Moved| Some(moved.cost.bytes? as f64 / mib);
        vec![
            system.to_string(),
            median(&|moved| Some(moved.total_ms / 1e3), 2),
            median(&|moved| Some(moved.downtime_ms), 1),
            median(&|moved| Some(moved.clients.request_gaps_ms.longest), 0),
            median(&|moved| Some(lost(moved)), 0),
            median(&|moved| Some(moved.before?.mean_ms), 2),
            median(&|moved| Some(moved.during?.mean_ms), 2),
            median(&|moved| Some(moved.during?.highest_mean_ms), 2),
            median(&|moved| Some(moved.during?.per_second), 0),
            median(&sent, 0),
        ]
    };
    let has = |system: &System| all.iter().any(|moved| moved.system == *system);
    Table {
        title: format!(
            "A disk of {} MiB with {} MiB of data, {WRITES} writes of {WRITE_KIB} KiB a second, {} \
             MiB of memory, 1 Gbit/s",
            sizes.disk_mib, sizes.file_mib, sizes.memory_mib
        ),
        head: vec![
            "moved by",
            "total, s",
            "downtime, ms",
            "longest gap of a client, ms",
            "datagrams lost",
            "a write before, ms",
            "during, ms",
            "highest mean of half a second, ms",
            "writes/s during",
            "sent, MiB",
        ],
        words: false,
        lines: System::ALL.into_iter().filter(has).map(row).collect(),
    }
}
