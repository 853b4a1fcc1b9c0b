//! The table of docs/matrix.md.

use super::outcome::Outcome;
use super::row::{MODES, Row};
use std::fmt::Write as _;

pub(super) fn render<'a>(rows: impl Iterator<Item = (&'a Row, &'a Outcome)>) -> String {
    let mut text = "| guest | source | destination | result | downtime, ms: pre-copy | hybrid | \
                    post-copy |\n|---|---|---|---|--:|--:|--:|\n"
        .to_owned();
    for (row, outcome) in rows {
        let [source, destination] = row.sides();
        // Writing to a String cannot fail.
        let _ = write!(
            text,
            "| {} | {source} | {destination} | {outcome} |",
            row.name()
        );
        for mode in MODES {
            let _ = match outcome.downtime_ms(mode) {
                Some(ms) => write!(text, " {ms:.1} |"),
                None => text.write_str(" |"),
            };
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::outcome::Trip;
    use super::*;
    use hikkoshi_lab::VmConfig;

    #[test]
    fn a_row_has_its_downtimes_or_its_failure() {
        let row = Row::new("all", VmConfig::new());
        let trip = |mode, downtime_ms| Trip { mode, downtime_ms };
        let moved = Outcome::Moved(vec![trip("postcopy", 3.06), trip("precopy", 1.0)]);
        let failed = Outcome::failed(&"a | b\nc");
        let table = render([(&row, &moved), (&row, &failed)].into_iter());
        let lines: Vec<_> = table.lines().skip(2).collect();
        assert!(lines[0].ends_with("| moved | 1.0 | | 3.1 |"), "{table}");
        assert!(lines[1].ends_with("| **FAILED**: a / b | | | |"), "{table}");
    }
}
