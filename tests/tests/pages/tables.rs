//! What is drawn can be read as numbers: in tables, and with the keyboard.

use hikkoshi_account::rate_text;
use hikkoshi_account::{Mode, Side};
use hikkoshi_dashboard::report;
use hikkoshi_tests::recordings::RecordedCase;
use hikkoshi_tests::{ShownPage, count};

/// All pages of a table, by its caption and its element.
fn all_rows(shown: &ShownPage, caption: &str, element: &str) -> Vec<Vec<String>> {
    let mut rows = shown.table(caption);
    loop {
        let next = format!(
            "(() => {{
                const next = document.querySelectorAll('{element} .pager button')[1];
                const more = next.checkVisibility() && !next.disabled;
                if (more) next.click();
                return more;
            }})()"
        );
        if shown.evaluate(&next) == false {
            return rows;
        }
        rows.extend(shown.table(caption));
    }
}

#[test]
fn all_samples_and_cells_are_in_tables() {
    let shown = ShownPage::start();
    let case = RecordedCase {
        link_pages: 6_000,
        ..RecordedCase::new("web", Mode::Hybrid)
    };
    let recording = case.record().recording(Side::Source);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tables.html");
    std::fs::write(&file, report(std::slice::from_ref(&recording))).unwrap();
    shown.open(&format!("file://{}", file.display()));
    shown.evaluate("document.querySelectorAll('article details').forEach(e => e.open = true)");
    shown.wait(
        "the tables",
        "document.querySelector('.memory-map .pager').checkVisibility()",
    );
    let rates = all_rows(&shown, "Rates over time", ".rates");
    assert!(rates.len() > 120, "several pages: {}", rates.len());
    assert_eq!(rates.len(), recording.samples.len());
    let missing = recording.samples.iter().map(|sample| sample.missing_pages);
    let missing: Vec<_> = missing
        .map(|pages| pages.map_or("–".to_owned(), count))
        .collect();
    let shown_missing: Vec<_> = rates.iter().map(|row| row[4].clone()).collect();
    assert_eq!(shown_missing, missing);
    // Page requests are measured by the destination, which is not known here.
    for row in &rates {
        assert_eq!(row[5..], ["–", "–", "–"], "{row:?}");
    }

    let cells = all_rows(&shown, "Pages by cell", ".memory-map");
    let map = &recording.state.as_ref().unwrap().map;
    assert_eq!(cells.len() as u64, recording.migration.memory.cells());
    // The source does not know which requests have no answer, nor in post-copy what is dirty.
    let last = cells.last().unwrap();
    assert_eq!(
        (&*last[5], &*last[6], &*last[9]),
        ("–", "–", "–"),
        "{last:?}"
    );
    let background: Vec<_> = cells.iter().map(|row| row[3].clone()).collect();
    let expected: Vec<_> = map.background.iter().map(|pages| count(*pages)).collect();
    assert_eq!(background, expected);

    // A rate is written as on a terminal.
    for rate in [0.0, 1.0, 5000.0, 50_000.0, 102_400.0, 50_000_000.0, 1.25e9] {
        let on_page = shown.evaluate(&format!("hikkoshi.format.rate({rate})"));
        assert_eq!(on_page, rate_text(rate));
    }

    // A chart says its values when the arrow keys move over it.
    shown.evaluate("document.querySelector('.rates .chart').focus()");
    let press = |key: &str| shown.browser.press(key).unwrap();
    let spoken = || {
        let text = shown.evaluate("document.activeElement.ariaValueText");
        text.as_str().unwrap_or_default().to_owned()
    };
    press("Home");
    assert!(
        spoken().starts_with("0:00, sent 0.0 MiB/s, dirtied –"),
        "{}",
        spoken()
    );
    let time = |index: usize| {
        let at_ms = recording.samples[index].at_ms;
        format!("0:{:02}.{}, sent ", at_ms / 1000, at_ms % 1000 / 100)
    };
    press("ArrowRight");
    press("ArrowRight");
    assert!(spoken().starts_with(&time(2)), "{}", spoken());
    let legend = "document.querySelector('.rates .u-legend .u-value').textContent";
    let at_cursor = shown.evaluate(legend);
    assert_eq!(format!("{}, sent ", at_cursor.as_str().unwrap()), time(2));
    press("End");
    let last = shown.evaluate("document.activeElement.getAttribute('aria-valuenow')");
    assert_eq!(last, (recording.samples.len() - 1).to_string());
    press("Escape");
    assert_eq!(spoken(), "");
    shown.assert_clean();
}
