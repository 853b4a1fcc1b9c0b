//! Reads the files that a report is made of.

use std::fs::File;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use hikkoshi_dashboard::recordings_in;
use hikkoshi_status::{Recording, VERSION};
use serde_json::Value;
use thiserror::Error;

use super::statistics;

/// The longest file, in bytes.
const LONGEST: u64 = 256 << 20;

/// A file that is not a part of a report.
#[derive(Debug, Error)]
pub(super) enum InputError {
    /// It cannot be read.
    #[error("reading {}", file.display())]
    Read {
        file: PathBuf,
        #[source]
        cause: io::Error,
    },
    /// It is something else.
    #[error("{} is neither a result of --json, nor a report, nor a recording: {problem}", file.display())]
    Unknown { file: PathBuf, problem: String },
    /// It is of another version.
    #[error("{} has version {version} of the status, and this hikkoshi reads version {VERSION}", file.display())]
    Version { file: PathBuf, version: u64 },
}

/// The recordings in a file.
pub(super) fn read(file: &Path) -> Result<Vec<Recording>, InputError> {
    let failed = |cause| InputError::Read {
        file: file.to_owned(),
        cause,
    };
    let mut content = Vec::new();
    let opened = File::open(file).map_err(failed)?;
    let length = opened.take(LONGEST + 1).read_to_end(&mut content);
    if length.map_err(failed)? as u64 > LONGEST {
        return Err(failed(io::ErrorKind::FileTooLarge.into()));
    }
    parse(file, &content)
}

fn parse(file: &Path, content: &[u8]) -> Result<Vec<Recording>, InputError> {
    let unknown = |problem: String| InputError::Unknown {
        file: file.to_owned(),
        problem,
    };
    let text = std::str::from_utf8(content).map_err(|error| unknown(error.to_string()))?;
    if text.trim_start().starts_with('<') {
        let data = recordings_in(text)
            .ok_or_else(|| unknown("it is a page without recordings".to_owned()))?;
        let values: Vec<Value> =
            serde_json::from_str(data).map_err(|error| unknown(error.to_string()))?;
        return values
            .into_iter()
            .map(|value| recording(file, value))
            .collect();
    }
    let value: Value = serde_json::from_str(text).map_err(|error| unknown(error.to_string()))?;
    if value.get("migration").is_some() {
        return Ok(vec![recording(file, value)?]);
    }
    let of = statistics::Source {
        id: &id(file, text),
        name: &file.file_stem().unwrap_or_default().to_string_lossy(),
    };
    statistics::recording(of, value)
        .map(|recording| vec![recording])
        .map_err(|error| unknown(error.to_string()))
}

/// The number of a migration whose result does not have it: the same for the same file with the
/// same content. Other files may have the same name, and the file may be overwritten by another
/// result.
fn id(file: &Path, content: &str) -> String {
    let mut hasher = DefaultHasher::new();
    (file, content).hash(&mut hasher);
    format!("file:{:016x}", hasher.finish())
}

fn recording(file: &Path, value: Value) -> Result<Recording, InputError> {
    let version = value.get("version").and_then(Value::as_u64).unwrap_or(0);
    if version != u64::from(VERSION) {
        return Err(InputError::Version {
            file: file.to_owned(),
            version,
        });
    }
    serde_json::from_value(value).map_err(|error| InputError::Unknown {
        file: file.to_owned(),
        problem: error.to_string(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use error_reporter::Report;
    use serde_json::json;

    fn parsed(content: &str) -> Result<Vec<Recording>, String> {
        parse("a/web.json".as_ref(), content.as_bytes())
            .map_err(|error| Report::new(&error).to_string())
    }

    #[test]
    fn other_files_are_refused_with_the_reason() {
        for (content, reason) in [
            ("", "neither a result"),
            ("[]", "neither a result"),
            ("<html></html>", "a page without recordings"),
            (r#"{"migration":{},"version":3}"#, "has version 3"),
            (r#"{"migration":{},"version":1}"#, "missing field"),
            (r#"{"error":{"message":"no link"}}"#, "missing field"),
            (r#"{"mode":"hybrid"}"#, "missing field"),
        ] {
            let error = parsed(content).unwrap_err();
            assert!(error.contains(reason), "{content}: {error}");
        }
    }

    /// A result of a pre-copy, with these members besides or instead.
    fn result(members: &Value) -> String {
        let latency = json!({
            "count": 0, "mean": 0.0, "p50": 0.0, "p99": 0.0, "max": 0.0, "histogram": [],
        });
        let mut result = json!({
            "mode": "precopy", "guest_state": "running", "total_ms": 1500.5, "downtime_ms": 8.5,
            "switchover": [], "rounds": 3, "postcopy": false,
            "pages": {"precopy": 10, "zero": 20, "urgent": 0, "background": 0, "guest": 30},
            "bytes": {"precopy": 100, "urgent": 0, "background": 0, "device_state": 5},
            "outages": [],
            "request_latency_us": latency,
            "request_stages_us": {
                "fault_to_request": latency, "request_to_page": latency,
                "page_to_installed": latency,
            },
            "unmeasured_requests": 0, "faults": [],
        });
        for (name, member) in members.as_object().unwrap() {
            result[name] = member.clone();
        }
        result.to_string()
    }

    #[test]
    fn the_recordings_of_a_report_are_read_again() {
        let latency = json!({
            "count": 3, "mean": 50.0, "p50": 40.0, "p99": 90.0, "max": 91.0,
            "histogram": [{"le_us": 64, "count": 2}, {"le_us": 128, "count": 1}],
        });
        let one = parsed(&result(&json!({
            "mode": "hybrid", "rounds": 1, "postcopy": true,
            "switchover": [{"step": "paused", "at_ms": 0.5}],
            "pages": {"precopy": 10, "zero": 20, "urgent": 3, "background": 4, "guest": 30},
            "request_latency_us": latency,
        })));
        let one = one.unwrap();
        assert_eq!(one[0].migration.guest, "web");
        let state = one[0].state.as_ref().unwrap();
        assert_eq!((state.pages.urgent, state.requests.count), (3, 3));
        assert_eq!(state.downtime_ms, Some(8.5));
        let page = hikkoshi_dashboard::report(&one);
        assert_eq!(parsed(&page).unwrap(), one);
        let stored = serde_json::to_string(&one[0]).unwrap();
        assert_eq!(parsed(&stored).unwrap(), one);
    }

    /// Results do not become one migration because their files have the same name, but the results
    /// of both sides do.
    #[test]
    fn files_of_one_name_are_different_migrations() {
        let read = |folder: &str, members: &Value| {
            let file = Path::new(folder).join("web.json");
            parse(&file, result(members).as_bytes()).unwrap().remove(0)
        };
        let files = [
            read("before", &json!({})),
            read("after", &json!({})),
            // The same file, overwritten.
            read("after", &json!({ "rounds": 4 })),
        ];
        let page = hikkoshi_dashboard::report(&files);
        assert!(page.contains("<title>3 migrations</title>"));
        let of = |side: &str| {
            json!({
                "migration_id": "00ff", "side": side, "pid": 1, "host": side, "guest": "web",
                "peer": "", "started_unix_ms": 1, "resumed": false,
            })
        };
        let sides = [read("a", &of("source")), read("b", &of("destination"))];
        let page = hikkoshi_dashboard::report(&sides);
        assert!(page.contains("<title>Migration of web</title>"));
    }

    /// The part of a page that is shown without scripts says nothing that is not known.
    #[test]
    fn a_failed_run_and_a_result_are_compared() {
        let moved = &*result(&json!({}));
        let failed = r#"{"error":{"exit_status":1,"reason":"link","guest":"source",
            "message":"the links failed","next":null,"resume":null}}"#;
        let recordings: Vec<_> = [moved, failed]
            .into_iter()
            .flat_map(|content| parsed(content).unwrap())
            .collect();
        let page = hikkoshi_dashboard::report(&recordings);
        let (shown, _) = page.split_once("<script").unwrap();
        assert!(shown.contains("the links failed") && shown.contains("stays at the source"));
        for untrue in ["1970", ">0 ms<", "No page was sent twice", "0 B"] {
            assert!(!shown.contains(untrue), "{untrue}: {shown}");
        }
        let row = |name: &str| {
            let (_, rest) = shown
                .split_once(&format!("<th scope=\"row\">{name}</th>"))
                .unwrap();
            let row = rest.split("</tr>").next().unwrap();
            let cells = row.split("<td").skip(1);
            let text = |cell: &str| {
                let (_, text) = cell.split_once('>').unwrap();
                text.trim_end_matches("</td>").to_owned()
            };
            cells.map(text).collect::<Vec<_>>()
        };
        assert_eq!(row("Rounds of pre-copy"), ["3", "–"]);
        assert_eq!(row("Total time"), ["1.50 s", "–"]);
        assert_eq!(row("Mode"), ["precopy", "–"]);
        // Read again from the page.
        assert_eq!(parsed(&page).unwrap(), recordings);
    }
}
