//! The result of `hikkoshi dirty-rate` as text.

use std::fmt::Write as _;

use hikkoshi_account::rate_text;
use hikkoshi_pages::PAGE_SIZE;

use super::report::{CostReport, DirtyRateReport, RangeReport, RatesReport};
use crate::output::units::{bytes, float};

/// Hot ranges that are printed; the JSON has all.
const HOT_SHOWN: usize = 8;

/// The result as text.
pub(crate) fn readable(report: &DirtyRateReport<'_>) -> String {
    let mut text = String::new();
    let total = &report.total;
    // Writing to a String cannot fail.
    let _ = writeln!(
        text,
        "measured {:.1} s in {} intervals of {} ms{}: {} of memory",
        report.seconds,
        report.intervals,
        report.interval_ms,
        if report.cancelled {
            " (ended early)"
        } else {
            ""
        },
        bytes(float(total.bytes))
    );
    if total.measured_bytes < total.bytes {
        let _ = writeln!(
            text,
            "  sample       {:.2} % of the memory; the numbers are extrapolated (--max-cost)",
            100.0 * float(total.measured_bytes) / float(total.bytes)
        );
    }
    let _ = writeln!(text, "  dirtied      {}", rate(total));
    text.push_str("  working set  different pages in a window: mean, most\n");
    for set in &total.working_sets {
        let _ = writeln!(
            text,
            "  {:>9} s  {:>22}  {:>22}",
            set.window_ms / 1e3,
            pages(set.mean_pages),
            pages(set.max_pages)
        );
    }
    for block in &report.blocks {
        let whole = block.rates.working_sets.last();
        let set = whole.map_or(0.0, |set| set.max_pages);
        let size = bytes(float(block.rates.bytes));
        // Most blocks are ROMs.
        if set > 0.0 {
            let _ = writeln!(
                text,
                "  block        {} ({size}): {}; {} different pages",
                block.id,
                rate(&block.rates),
                count(set)
            );
        }
    }
    for range in report.hot_ranges.iter().take(HOT_SHOWN) {
        let _ = writeln!(text, "  hot          {}", place(range));
    }
    if let Some(hidden @ 1..) = report.hot_ranges.len().checked_sub(HOT_SHOWN) {
        let _ = writeln!(text, "  hot          and {hidden} more ranges (--map)");
    }
    for range in report.map.iter().flatten() {
        let _ = writeln!(text, "  range        {}", place(range));
    }
    text.push_str(&cost(&report.cost));
    for note in report.notes {
        let _ = writeln!(text, "  note: {note}");
    }
    text
}

fn rate(rates: &RatesReport) -> String {
    let (pages, bytes_) = (&rates.pages_per_second, &rates.bytes_per_second);
    format!(
        "{} pages/s ({}) in the median interval, {} at most",
        count(pages.median),
        rate_text(bytes_.median),
        count(pages.max)
    )
}

fn place(range: &RangeReport<'_>) -> String {
    let address = range.guest_address.map_or_else(String::new, |address| {
        format!(", guest address {address:#x}")
    });
    format!(
        "{} + {:#x}, {}{address}: {} pages/s, {} different pages",
        range.block,
        range.offset,
        bytes(float(range.bytes)),
        count(range.pages_per_second),
        count(range.different_pages)
    )
}

fn cost(cost: &CostReport) -> String {
    format!(
        "  cost         about {:.1} % of one vCPU: {} page faults/s; a read of the log takes {:.2} ms, \
         at most {:.2} ms\n",
        cost.vcpu_share * 100.0,
        count(cost.faults_per_second),
        cost.mean_take_ms,
        cost.max_take_ms
    )
}

/// Pages, and their bytes.
fn pages(number: f64) -> String {
    format!(
        "{} ({})",
        count(number),
        bytes(number * float(PAGE_SIZE as u64))
    )
}

/// A whole number.
fn count(number: f64) -> String {
    format!("{number:.0}")
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // a test's failure is the message
mod tests {
    use std::time::Duration;

    use hikkoshi_dirty_rate::Recorder;
    use hikkoshi_pages::{GuestRange, Page, PageRange, RamBlock, RamLayout};

    use super::*;

    #[test]
    fn the_text_names_rates_working_sets_and_hot_ranges() {
        let layout = RamLayout::new(vec![RamBlock {
            id: "pc.ram".into(),
            bytes: 64 << 20,
            host_page: 4096,
            guest: vec![GuestRange {
                gpa: 0x10_0000,
                offset: 0,
                bytes: 64 << 20,
            }],
        }])
        .unwrap();
        let interval = Duration::from_millis(100);
        let mut recorder = Recorder::new(&layout, interval, 10, 0);
        for now in 0..10 {
            recorder.begin_interval();
            recorder.dirty(PageRange::from_len(Page::new(4096), 256));
            recorder.dirty(PageRange::from_len(Page::new(8192 + 16 * now), 16));
            recorder.end_interval(interval);
        }
        let measured = recorder.finish();
        let notes = ["a note".to_owned()];
        let report = DirtyRateReport::new(7, &layout, &measured, true, &notes);
        let text = readable(&report);
        for part in [
            "measured 1.0 s in 10 intervals of 100 ms: 64.0 MiB of memory",
            "2720 pages/s (10.6 MiB/s) in the median interval, 2720 at most",
            "  0.1 s           272 (1.1 MiB)           272 (1.1 MiB)",
            "    1 s           416 (1.6 MiB)           416 (1.6 MiB)",
            "hot          pc.ram + 0x1000000, 1.0 MiB, guest address 0x1100000: 2560 pages/s, 256 \
             different pages",
            "range        pc.ram + 0x0, 16.0 MiB, guest address 0x100000: 0 pages/s, 0 different",
            "note: a note",
        ] {
            assert!(text.contains(part), "no {part:?} in:\n{text}");
        }
        assert!(!text.contains("sample"), "{text}");
    }
}
