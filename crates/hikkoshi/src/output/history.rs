//! What was moved, for people and for programs (`docs/assets/schemas/history.schema.json`).

use hikkoshi_account::date_text;
use hikkoshi_status::PastMigration;

use crate::output::colours::Colour;
use crate::output::columns::{Row, in_columns};
use crate::output::streams::Lines;
use crate::output::units::{bytes, float};

const HEADINGS: [&str; 9] = [
    "STARTED", "GUEST", "FROM", "TO", "MODE", "TOTAL", "DOWNTIME", "SENT", "RESULT",
];

/// What is not known.
const NOTHING: &str = "-";

/// A line for each migration, under headings.
pub(crate) fn table(all: &[&PastMigration]) -> Vec<Lines> {
    if all.is_empty() {
        let none = "no migration was recorded";
        return vec![Lines::new(Colour::Plain, none)];
    }
    let mut rows: Vec<Row> = vec![(Colour::Heading, HEADINGS.map(str::to_owned).to_vec())];
    rows.extend(all.iter().map(|past| row(past)));
    in_columns(&rows, &[], None)
}

fn row(past: &PastMigration) -> Row {
    let downtime = past.downtime_ms.map(|ms| format!("{ms:.1} ms"));
    let colour = match past.exit_status {
        Some(0 | 1) => Colour::Plain,
        // Not finished, lost, or not known.
        _ => Colour::Alarm,
    };
    let row = [
        date_text(past.started_unix_ms),
        past.guest.clone(),
        past.from.clone(),
        past.to.clone(),
        past.mode.clone(),
        format!("{:.1} s", past.total_ms / 1e3),
        downtime.unwrap_or_else(|| NOTHING.to_owned()),
        bytes(float(past.bytes)),
        past.result.clone(),
    ];
    // Names of guests can contain anything: each stays in its line.
    let cell = |cell: String| -> String { cell.chars().filter(|c| !c.is_control()).collect() };
    (colour, row.map(cell).to_vec())
}

/// An object for each migration, a line each.
pub(crate) fn json_lines(all: &[&PastMigration]) -> String {
    // All keys are strings, so that this cannot fail.
    let line = |past: &&PastMigration| serde_json::to_string(past).unwrap_or_default() + "\n";
    all.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use hikkoshi_account::Side;
    use hikkoshi_status::HISTORY_VERSION;

    fn past() -> PastMigration {
        PastMigration {
            version: HISTORY_VERSION,
            id: "00112233".to_owned(),
            guest: "web\n".to_owned(),
            started_unix_ms: 1_700_000_000_999,
            ended_unix_ms: 1_700_000_002_000,
            from: "host-a".to_owned(),
            to: "host-b:7000".to_owned(),
            sides: vec![Side::Source],
            mode: "hybrid".to_owned(),
            total_ms: 1234.0,
            downtime_ms: Some(7.25),
            bytes: 3 << 30,
            exit_status: Some(0),
            result: "moved".to_owned(),
            message: None,
            entries: vec!["source-1-00112233".to_owned()],
        }
    }

    #[test]
    fn a_migration_is_a_row() {
        let moved = past();
        let killed = PastMigration {
            exit_status: None,
            downtime_ms: None,
            result: "engine_lost".to_owned(),
            ..past()
        };
        let lines = table(&[&moved, &killed]);
        let cells = |at: usize| -> Vec<&str> {
            let cells = lines[at].text.split("  ").map(str::trim);
            cells.filter(|cell| !cell.is_empty()).collect()
        };
        assert_eq!(cells(0), HEADINGS);
        let expected = [
            "2023-11-14 22:13:20 UTC",
            "web",
            "host-a",
            "host-b:7000",
            "hybrid",
            "1.2 s",
            "7.2 ms",
            "3.0 GiB",
            "moved",
        ];
        assert_eq!(cells(1), expected);
        assert_eq!((cells(2)[6], cells(2)[8]), ("-", "engine_lost"));
        let colours: Vec<_> = lines.iter().map(|line| line.colour).collect();
        assert_eq!(colours, [Colour::Heading, Colour::Plain, Colour::Alarm]);
        assert_eq!(table(&[])[0].text, "no migration was recorded");
    }

    #[test]
    fn programs_get_a_line_for_each() {
        let past = past();
        let text = json_lines(&[&past, &past]);
        assert_eq!(text.lines().count(), 2);
        let value: serde_json::Value = serde_json::from_str(text.lines().next().unwrap()).unwrap();
        assert_eq!(value["guest"], "web\n");
        assert_eq!(value["sides"][0], "source");
        assert_eq!(value["exit_status"], 0);
    }
}
