//! The documents name the metrics that are exported, and no others.

use std::collections::BTreeSet;

use hikkoshi_dashboard::{FAMILIES, Kind};

const DOCUMENT: &str = include_str!("../../../docs/dashboard.md");
const GRAFANA: &str = include_str!("../../../docs/monitoring/grafana-dashboard.json");
const ALERTS: &str = include_str!("../../../docs/monitoring/alerts.yaml");
const ALERT_TESTS: &str = include_str!("../../../docs/monitoring/alerts.test.yaml");

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
            Kind::Histogram => matches!(rest, Some("_bucket" | "_sum" | "_count")),
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
