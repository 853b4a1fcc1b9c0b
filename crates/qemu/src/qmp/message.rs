//! Parses the lines that QEMU sends.

use std::fmt;
use std::time::{Duration, Instant, SystemTime};

use hikkoshi_wire::text::one_line;
use serde_json::{Map, Value};

/// QEMU's version, from its greeting. Ordered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    /// The 10 of 10.0.2.
    pub major: u32,
    /// The 0 of 10.0.2.
    pub minor: u32,
    /// The 2 of 10.0.2.
    pub micro: u32,
}

impl Version {
    /// The version `major.minor.micro`.
    pub const fn new(major: u32, minor: u32, micro: u32) -> Self {
        Self {
            major,
            minor,
            micro,
        }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.micro)
    }
}

/// An event that QEMU reports.
#[derive(Debug, Clone)]
pub struct QmpEvent {
    /// Its name, such as `STOP`.
    pub name: String,
    /// Its data.
    pub data: Value,
    /// When QEMU raised it, on the clock of this process: converted from QEMU's
    /// time stamp, and never later than when we read it.
    pub at: Instant,
}

impl QmpEvent {
    /// The status in a `MIGRATION` event.
    pub(crate) fn migration_status(&self) -> Option<&str> {
        if self.name == "MIGRATION" {
            self.data.get("status")?.as_str()
        } else {
            None
        }
    }
}

/// One parsed line from QEMU.
#[derive(Debug)]
pub(crate) enum Message {
    Greeting(Version),
    Event(QmpEvent),
    Return {
        id: Option<u64>,
        value: Value,
    },
    Error {
        id: Option<u64>,
        class: String,
        description: String,
    },
}

/// The longest excerpt of a bad line in an error message, in bytes.
const EXCERPT: usize = 80;

pub(crate) fn excerpt(line: &[u8]) -> String {
    let cut = line.get(..EXCERPT).unwrap_or(line);
    let dots = if cut.len() < line.len() { "…" } else { "" };
    format!("\"{}{dots}\"", cut.escape_ascii())
}

impl Message {
    /// Parses a line. The error says what is wrong with it.
    pub(crate) fn parse(line: &[u8]) -> Result<Self, String> {
        let bad = |why: &str| format!("{why}: {}", excerpt(line));
        let Ok(Value::Object(mut object)) = serde_json::from_slice(line) else {
            return Err(bad("not a JSON object"));
        };
        let id = object.get("id").and_then(Value::as_u64);
        if let Some(qmp) = object.get("QMP") {
            return version(qmp)
                .map(Self::Greeting)
                .ok_or_else(|| bad("a greeting without a version"));
        }
        if let Some(Value::String(name)) = object.remove("event") {
            let at = instant_of(&object, Instant::now(), SystemTime::now());
            let data = object.remove("data").unwrap_or(Value::Null);
            return Ok(Self::Event(QmpEvent { name, data, at }));
        }
        if let Some(value) = object.remove("return") {
            return Ok(Self::Return { id, value });
        }
        if let Some(Value::Object(error)) = object.get("error") {
            let text = |key| {
                let text = error.get(key).and_then(Value::as_str);
                one_line(text.unwrap_or("(no description)")).into_owned()
            };
            return Ok(Self::Error {
                id,
                class: text("class"),
                description: text("desc"),
            });
        }
        Err(bad("neither an answer nor an event"))
    }
}

fn version(qmp: &Value) -> Option<Version> {
    let qemu = qmp.get("version")?.get("qemu")?;
    let part = |key| u32::try_from(qemu.get(key)?.as_u64()?).ok();
    Some(Version::new(part("major")?, part("minor")?, part("micro")?))
}

/// The greatest plausible age of an event. A greater one means that the wall clock
/// was set in the meantime.
const MAX_EVENT_AGE: Duration = Duration::from_secs(30);

/// Converts an event's time stamp. QEMU uses the wall clock, the engine `Instant`.
fn instant_of(object: &Map<String, Value>, now: Instant, wall: SystemTime) -> Instant {
    let stamp = || {
        let stamp = object.get("timestamp")?;
        let seconds = stamp.get("seconds")?.as_u64()?;
        let micros = stamp.get("microseconds")?.as_u64()?;
        let since_epoch =
            Duration::from_secs(seconds).checked_add(Duration::from_micros(micros))?;
        let at = SystemTime::UNIX_EPOCH.checked_add(since_epoch)?;
        let age = wall.duration_since(at).ok()?;
        (age <= MAX_EVENT_AGE).then_some(())?;
        now.checked_sub(age)
    };
    stamp().unwrap_or(now)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn greetings_of_both_versions() {
        for (line, want) in [
            (
                r#"{"QMP": {"version": {"qemu": {"micro": 22, "minor": 2, "major": 7}, "package": "Debian 1:7.2+dfsg-7+deb12u18+b3"}, "capabilities": ["oob"]}}"#,
                Version::new(7, 2, 22),
            ),
            (
                r#"{"QMP": {"version": {"qemu": {"micro": 2, "minor": 0, "major": 10}, "package": "Debian 1:10.0.2+ds-2+deb13u1~bpo12+1"}, "capabilities": ["oob"]}}"#,
                Version::new(10, 0, 2),
            ),
        ] {
            match Message::parse(line.as_bytes()).unwrap() {
                Message::Greeting(version) => assert_eq!(version, want),
                other => panic!("{other:?}"),
            }
        }
        assert!(Version::new(7, 2, 0) < Version::new(10, 0, 2));
    }

    #[test]
    fn an_error_keeps_qemus_message() {
        let line = br#"{"id": 4, "error": {"class": "GenericError", "desc": "Migration is not finalized yet"}}"#;
        match Message::parse(line).unwrap() {
            Message::Error {
                id,
                class,
                description,
            } => {
                assert_eq!(id, Some(4));
                assert_eq!(class, "GenericError");
                assert_eq!(description, "Migration is not finalized yet");
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn an_error_is_text_only() {
        let line = br#"{"error": {"class": "\u0007", "desc": "a\n\u001b[2Jb\u009b31m"}}"#;
        match Message::parse(line).unwrap() {
            Message::Error {
                class, description, ..
            } => {
                assert_eq!(class, "?");
                assert_eq!(description, "a ?[2Jb?31m");
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_bad_line_is_described_with_an_excerpt() {
        let long = vec![b'z'; 10_000];
        for (line, part) in [
            (
                &b"QEMU 7.2.22 monitor - type 'help'"[..],
                "not a JSON object",
            ),
            (b"[1,2]", "not a JSON object"),
            (b"{\"x\":1}", "neither an answer nor an event"),
            (b"{\"QMP\":{}}", "without a version"),
            (b"\xff\xfe", "\\xff\\xfe"),
            (&long, "zz…"),
        ] {
            let error = Message::parse(line).unwrap_err();
            assert!(error.contains(part), "{error}");
            assert!(error.len() < 400);
        }
    }

    #[test]
    fn time_stamps_are_converted_unless_the_clock_was_set() {
        let now = Instant::now();
        let wall = SystemTime::UNIX_EPOCH + Duration::from_millis(1_700_000_000_500);
        let stamped = |json: &str| {
            let Value::Object(object) = serde_json::from_str(json).unwrap() else {
                panic!()
            };
            instant_of(&object, now, wall)
        };
        assert_eq!(
            stamped(r#"{"timestamp":{"seconds":1700000000,"microseconds":250000}}"#),
            now - Duration::from_millis(250)
        );
        for odd in [
            r#"{"timestamp":{"seconds":1600000000,"microseconds":0}}"#,
            r#"{"timestamp":{"seconds":1700000009,"microseconds":0}}"#,
            r#"{"timestamp":{"seconds":18446744073709551615,"microseconds":18446744073709551615}}"#,
            r#"{"timestamp":{"seconds":-1,"microseconds":-1}}"#,
            "{}",
        ] {
            assert_eq!(stamped(odd), now, "{odd}");
        }
    }
}
