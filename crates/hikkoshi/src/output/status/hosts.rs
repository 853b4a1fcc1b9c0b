//! Several hosts and their migrations, for people and for programs.

use hikkoshi_status::{HOST_VERSION, HostGuestState, HostStatus};
use serde_json::{Value, json};

use super::text::{NOTHING, one_line};
use super::{SeenMigration, alarms, details, text};
use crate::output::colours::Colour;
use crate::output::columns::{Row, in_columns};
use crate::output::streams::Lines;
use crate::output::units::{bytes, float};

const HEADINGS: [&str; 8] = [
    "HOST", "GUESTS", "MOVING", "AWAITED", "FREE", "MEMORY", "LOAD", "ANSWER",
];

/// The headings of columns that a narrow terminal does not have.
const LEFT_OUT: [&str; 4] = ["LOAD", "MEMORY", "AWAITED", "MOVING"];

/// A host that was asked.
#[derive(Debug, Clone)]
pub(crate) struct SeenHost {
    /// How it was named.
    pub at: String,
    /// What it has answered, or why there is no answer.
    pub answer: Result<HostStatus, String>,
    /// Its migrations.
    pub migrations: Vec<SeenMigration>,
}

impl SeenHost {
    /// A host with its answer, whose migrations are read. Those that cannot be read are problems of
    /// the host.
    pub(crate) fn new(at: &str, mut answer: Result<HostStatus, String>) -> Self {
        let mut migrations = Vec::new();
        if let Ok(status) = &mut answer {
            for line in &status.migrations {
                match SeenMigration::read(line) {
                    Ok(seen) => migrations.push(seen),
                    Err(why) => {
                        let what = format!("a migration cannot be read: {why}");
                        status.problems.push(what);
                    }
                }
            }
        }
        Self {
            at: at.to_owned(),
            answer,
            migrations,
        }
    }
}

/// The hosts, and then their migrations, or all about each of the `meant` ones.
pub(crate) fn hosts_table(
    hosts: &[SeenHost],
    is_meant: impl Fn(&SeenMigration) -> bool,
    in_detail: bool,
    columns: Option<usize>,
) -> Vec<Lines> {
    let mut rows: Vec<Row> = vec![(Colour::Heading, HEADINGS.map(str::to_owned).to_vec())];
    rows.extend(hosts.iter().map(row));
    let mut lines: Vec<Lines> = hosts.iter().flat_map(host_alarms).collect();
    lines.extend(in_columns(&rows, &LEFT_OUT, columns));
    lines.push(Lines::new(Colour::Plain, ""));
    let all = hosts.iter().flat_map(|host| {
        let own = host.migrations.iter().map(|seen| (&*host.at, seen));
        own.collect::<Vec<_>>()
    });
    let meant: Vec<_> = all.filter(|(_, seen)| is_meant(seen)).collect();
    match in_detail {
        true => {
            for (at, seen) in &meant {
                lines.push(Lines::new(Colour::Heading, format!("{:<10} {at}", "host")));
                lines.extend(details(&[seen]));
                lines.push(Lines::new(Colour::Plain, ""));
            }
        }
        false => lines.extend(text::table_of_hosts(&meant, columns)),
    }
    lines
}

/// What must not be overlooked of a host.
fn host_alarms(host: &SeenHost) -> Vec<Lines> {
    let problems = match &host.answer {
        Ok(status) => status.problems.clone(),
        Err(_) => Vec::new(),
    };
    let seen: Vec<&SeenMigration> = host.migrations.iter().collect();
    let all = problems.into_iter().chain(alarms(&seen));
    let line = |what: String| {
        let what = format!("{}: {}", host.at, one_line(&what));
        Lines::new(Colour::Alarm, what)
    };
    all.map(line).collect()
}

fn row(host: &SeenHost) -> Row {
    let status = match &host.answer {
        Ok(status) => status,
        Err(why) => {
            let mut row = vec![NOTHING.to_owned(); HEADINGS.len()];
            row[0].clone_from(&host.at);
            row[HEADINGS.len() - 1] = format!("NONE: {}", one_line(why));
            return (Colour::Alarm, row);
        }
    };
    let count = |states: &[HostGuestState]| {
        let guests = status.guests.iter();
        let those = guests.filter(|guest| states.contains(&guest.state));
        those.count().to_string()
    };
    let facts = &status.host;
    let row = vec![
        host.at.clone(),
        status.guest_count().to_string(),
        count(&[HostGuestState::Arriving, HostGuestState::Leaving]),
        count(&[HostGuestState::Awaited]),
        bytes(float(facts.memory.available_bytes)),
        bytes(float(facts.memory.total_bytes)),
        format!(
            "{:.2} of {}",
            facts.processors.load[0], facts.processors.online
        ),
        one_line(&format!(
            "hikkoshi {}, Linux {}",
            facts.hikkoshi, facts.kernel
        )),
    ];
    (Colour::Plain, row)
}

/// A host as lines of JSON: the host, and then its migrations that are meant.
pub(crate) fn host_json(host: &SeenHost, is_meant: impl Fn(&SeenMigration) -> bool) -> String {
    let (status, error) = match &host.answer {
        Ok(status) => {
            let mut status = status.clone();
            status.migrations.clear();
            (
                serde_json::to_value(status).unwrap_or_default(),
                Value::Null,
            )
        }
        Err(why) => (Value::Null, why.as_str().into()),
    };
    let migrations = host.migrations.iter().filter(|seen| is_meant(seen));
    let migrations: Vec<_> = migrations.collect();
    let first = json!({
        "version": HOST_VERSION,
        "asked": host.at,
        "status": status,
        "error": error,
        "migrations": migrations.len(),
    });
    let migrations = migrations.into_iter().map(|seen| {
        let line = super::json_line(seen);
        let mut value: Value = serde_json::from_str(&line).unwrap_or_default();
        value["asked"] = host.at.as_str().into();
        value
    });
    let lines = [first].into_iter().chain(migrations);
    lines.map(|line| format!("{line}\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::super::examples;
    use super::*;
    use hikkoshi_account::Side;
    use hikkoshi_status::{HostFacts, HostGuest};

    fn host(at: &str) -> SeenHost {
        let mut host = HostFacts::read("0.1.0").unwrap();
        host.memory.available_bytes = 3 << 29;
        host.memory.total_bytes = 4 << 30;
        host.processors.load[0] = 0.5;
        host.processors.online = 8;
        host.kernel = "6.18".to_owned();
        let guest = |name: &str, state| HostGuest {
            name: name.to_owned(),
            state,
            memory_bytes: None,
            resident_bytes: None,
        };
        let seen = examples::seen(Side::Source, "web", 7, true);
        let line = super::super::json_line(&seen);
        let status = HostStatus {
            version: HOST_VERSION,
            host,
            guests: vec![
                guest("web", HostGuestState::Leaving),
                guest("db", HostGuestState::Awaited),
            ],
            other_guests: 3,
            limits: None,
            migrations: vec![serde_json::from_str(&line).unwrap(), Value::from(1)],
            problems: Vec::new(),
        };
        SeenHost::new(at, Ok(status))
    }

    fn texts(lines: Vec<Lines>) -> Vec<String> {
        lines.into_iter().map(|line| line.text).collect()
    }

    #[test]
    fn each_host_has_a_row_also_without_an_answer() {
        let silent = SeenHost::new("vmhost2", Err("it was\nrefused".to_owned()));
        let hosts = [host("vmhost1:7000"), silent];
        let lines = texts(hosts_table(&hosts, |_| true, false, None));
        let alarm = "vmhost1:7000: a migration cannot be read: ";
        assert!(lines[0].starts_with(alarm), "{lines:?}");
        assert_eq!(
            lines[1..5],
            [
                "HOST          GUESTS  MOVING  AWAITED  FREE     MEMORY   LOAD       ANSWER",
                "vmhost1:7000  5       1       1        1.5 GiB  4.0 GiB  0.50 of 8  \
                 hikkoshi 0.1.0, Linux 6.18",
                "vmhost2       -       -       -        -        -        -          \
                 NONE: it wasrefused",
                "",
            ]
        );
        assert!(
            lines[5].starts_with("HOST          GUEST  SIDE"),
            "{lines:?}"
        );
        assert!(
            lines[6].starts_with("vmhost1:7000  web    source"),
            "{lines:?}"
        );
        assert_eq!(lines.len(), 7);
        let narrow = texts(hosts_table(&hosts, |_| true, false, Some(40)));
        assert!(
            narrow
                .iter()
                .all(|line| line.chars().count() <= 40 || line == &lines[0])
        );
        assert!(
            narrow[1].starts_with("HOST          GUESTS  FREE"),
            "{narrow:?}"
        );
        let none = texts(hosts_table(&hosts, |_| false, false, None));
        assert_eq!(none.last().unwrap(), "no migration runs on these hosts");
        let details = texts(hosts_table(&hosts, |_| true, true, None));
        let guest = details
            .iter()
            .position(|line| line == "guest      web")
            .unwrap();
        assert_eq!(details[guest - 1], "host       vmhost1:7000");
    }

    #[test]
    fn programs_get_a_line_for_each_host_and_each_migration() {
        let text = host_json(&host("vmhost1"), |_| true);
        let lines: Vec<Value> = text
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        assert_eq!(lines.len(), 2);
        assert_eq!(lines[0]["asked"], "vmhost1");
        assert_eq!(lines[0]["status"]["other_guests"], 3);
        assert_eq!(lines[0]["migrations"], 1);
        assert!(lines[0]["error"].is_null() && lines[0]["status"].get("migrations").is_none());
        assert_eq!(lines[1]["asked"], "vmhost1");
        assert_eq!(lines[1]["migration"]["guest"], "web");
        let silent = SeenHost::new("vmhost2", Err("why".to_owned()));
        let line: Value = serde_json::from_str(&host_json(&silent, |_| true)).unwrap();
        assert_eq!(
            (&line["error"], &line["status"]),
            (&"why".into(), &Value::Null)
        );
    }
}
