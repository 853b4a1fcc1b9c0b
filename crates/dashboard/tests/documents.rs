//! The documents name the metrics that are exported, and no others.

#![allow(clippy::unwrap_used)] // a test's failure is the message

use std::collections::BTreeSet;

use hikkoshi_dashboard::{FAMILIES, MetricKind, report};

const DOCUMENT: &str = include_str!("../../../docs/dashboard.md");
const GRAFANA: &str = include_str!("../../../docs/assets/monitoring/grafana-dashboard.json");
const ALERTS: &str = include_str!("../../../docs/assets/monitoring/alerts.yaml");
const ALERT_TESTS: &str = include_str!("../../../docs/assets/monitoring/alerts.test.yaml");

/// The names of metrics in a text.
fn names(text: &str) -> BTreeSet<&str> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    text.split(|c| !is_part(c))
        .filter(|word| word.starts_with("hikkoshi_"))
        .collect()
}

/// Whether a metric with this name is exported.
fn is_exported(name: &str) -> bool {
    FAMILIES.iter().any(|family| {
        let rest = name.strip_prefix(family.name);
        match family.kind {
            MetricKind::Histogram => matches!(rest, Some("_bucket" | "_sum" | "_count")),
            _ => rest == Some(""),
        }
    })
}

#[test]
fn the_table_of_metrics_is_right() {
    let row = |family: &hikkoshi_dashboard::Family| {
        format!(
            "| `{}` | {} | {} |\n",
            family.name, family.kind, family.help
        )
    };
    let table: String = FAMILIES.iter().map(row).collect();
    assert!(
        DOCUMENT.contains(&table),
        "docs/dashboard.md must have:\n{table}"
    );
}

#[test]
fn the_rules_use_exported_metrics() {
    for text in [ALERTS, ALERT_TESTS] {
        let names = names(text);
        assert!(names.len() > 5, "{names:?}");
        for name in names {
            assert!(is_exported(name), "{name}");
        }
    }
}

#[test]
fn the_grafana_dashboard_uses_exported_metrics() {
    let dashboard: serde_json::Value = serde_json::from_str(GRAFANA).unwrap();
    let mut used = BTreeSet::new();
    let (mut ids, mut places) = (BTreeSet::new(), BTreeSet::new());
    for panel in dashboard["panels"].as_array().unwrap() {
        let title = panel["title"].as_str().unwrap();
        assert!(ids.insert(panel["id"].as_u64().unwrap()), "{title}");
        let place = &panel["gridPos"];
        let [x, y, w, h] = ["x", "y", "w", "h"].map(|field| place[field].as_u64().unwrap());
        for column in x..x + w {
            for row in y..y + h {
                assert!(
                    column < 24 && places.insert((column, row)),
                    "{title} overlaps"
                );
            }
        }
        for target in panel["targets"].as_array().unwrap() {
            let found = names(target["expr"].as_str().unwrap());
            assert!(!found.is_empty(), "{title}");
            used.extend(found);
        }
    }
    for variable in dashboard["templating"]["list"].as_array().unwrap() {
        used.extend(names(variable["definition"].as_str().unwrap_or_default()));
    }
    for name in &used {
        assert!(is_exported(name), "{name}");
    }
    assert!(used.len() > 20, "{used:?}");
}

/// The text of a report that is shown without scripts, in one line.
fn shown_text(page: &str) -> String {
    let (shown, _) = page
        .split_once("<script type=\"application/json\"")
        .unwrap();
    let (_, body) = shown.split_once("</head>").unwrap();
    let mut text = String::new();
    for part in body.split('<') {
        // The rest of the element before, and what follows it.
        text.push_str(part.split_once('>').map_or(part, |(_, after)| after));
        text.push(' ');
    }
    let text = text.replace("&amp;", "&").replace("&#39;", "'");
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Whether a figure is in a text, and not as a part of a longer number.
fn has_figure(text: &str, figure: &str) -> bool {
    let is_part = |c: Option<char>| c.is_some_and(|c| c.is_ascii_digit() || c == ',' || c == '.');
    text.match_indices(figure).any(|(at, _)| {
        let before = text[..at].chars().next_back();
        let after = text[at + figure.len()..].chars().next();
        let ends_a_sentence = matches!(after, Some(',' | '.'))
            && !text[at + figure.len() + 1..].starts_with(|c: char| c.is_ascii_digit());
        !is_part(before) && (!is_part(after) || ends_a_sentence)
    })
}

/// What is in italics and begins with a digit: a figure of a report.
fn figures(document: &str) -> Vec<&str> {
    // Not the mark of a list.
    let lines = document.lines().map(|line| {
        let line = line.trim_start();
        line.strip_prefix("* ").unwrap_or(line)
    });
    let spans = lines.flat_map(|line| line.split('*').skip(1).step_by(2));
    spans
        .filter(|span| span.starts_with(|c: char| c.is_ascii_digit()))
        .collect()
}

#[test]
fn figures_are_found_as_a_whole() {
    let text = "sent 1,664 MiB in 12.5 s, and 7.";
    for figure in ["1,664 MiB", "12.5 s", "7"] {
        assert!(has_figure(text, figure), "{figure}");
    }
    for figure in ["664 MiB", "2.5 s", "1", "12", "5 s"] {
        assert!(!has_figure(text, figure), "{figure}");
    }
    assert_eq!(
        figures("* a *done* in *12.5 s* or\n`--rounds 2`"),
        ["12.5 s"]
    );
    assert_eq!(
        shown_text("<head></head><p>a <b>1</b>&amp;</p><script type=\"application/json\">"),
        "a 1 &"
    );
}

/// docs/reading-a-report.md quotes what is in the reports of the recordings beside it.
#[test]
fn the_figures_of_the_report_that_is_read_are_in_it() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs");
    let read = |name: &str| std::fs::read_to_string(format!("{folder}/{name}")).unwrap();
    let document = read("reading-a-report.md").replace("**", "");
    let (normal, other) = document
        .split_once("\n## One that does not converge\n")
        .expect("the part about the other report");
    for (part, moved, least) in [(normal, "normal", 20), (other, "no-convergence", 8)] {
        let recordings = ["source", "destination"].map(|side| {
            serde_json::from_str(&read(&format!("assets/reports/{moved}-{side}.json"))).unwrap()
        });
        let text = shown_text(&report(&recordings));
        let figures = figures(part);
        assert!(figures.len() >= least, "{moved}: {figures:?}");
        for figure in figures {
            assert!(has_figure(&text, figure), "{figure} is not in {moved}");
        }
    }
}
