//! What is sent.
//!
//! Names are a contract (`docs/control.md`, `docs/assets/schemas/control.schema.json`). Members and
//! kinds of answers may be added; a request with a member that the engine does not know is refused,
//! because it would not do what was asked.

use serde::{Deserialize, Deserializer, Serialize};

use crate::{MAX_LINE, VERSION};

/// The longest message of a refusal, in bytes.
const MESSAGE_BYTES: usize = MAX_LINE / 8;

/// What a client asks for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Request {
    /// [`VERSION`].
    pub version: u32,
    /// The key of the socket, in hexadecimal.
    pub key: String,
    /// What to do.
    pub command: Command,
}

/// What an engine is asked to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Command {
    /// Change limits: all that are given, or none.
    Set(Set),
    /// End pre-copy; post-copy follows.
    Switch,
    /// Cancel the migration; the guest continues at the source.
    Cancel,
}

/// New limits. What is not given stays.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Set {
    /// Limit of background traffic, in bytes per second; `Some(None)`, `null` in JSON: no limit.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "present"
    )]
    pub bandwidth: Option<Option<u64>>,
    /// How long pre-copy may pause the guest, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_downtime_ms: Option<u64>,
}

/// A member that is there, whatever its value is.
fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Option<u64>>, D::Error> {
    Option::deserialize(deserializer).map(Some)
}

/// What the engine answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    /// [`VERSION`].
    pub version: u32,
    /// What has happened.
    pub outcome: Outcome,
}

/// What has happened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// Limits were changed.
    Changed(Changed),
    /// Pre-copy ends now.
    Switching,
    /// The migration is being cancelled: the guest continues at the source.
    Cancelling,
    /// Nothing was changed.
    Refused(Refusal),
}

/// The limits that were changed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Changed {
    /// Limit of background traffic, in bytes per second; `null`: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bandwidth: Option<Change<Option<u64>>>,
    /// How long pre-copy may pause the guest, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_downtime_ms: Option<Change<u64>>,
}

/// A limit before and after.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change<T> {
    /// Before.
    pub old: T,
    /// From now on.
    pub new: T,
}

/// Why nothing was changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// For programs.
    pub reason: RefusalReason,
    /// For people.
    pub message: String,
}

/// Why nothing was changed, as a code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RefusalReason {
    /// The request is not one, or is too long.
    Malformed,
    /// The request has another version.
    Version,
    /// The client is of another user, or does not have the key.
    NotPermitted,
    /// A limit is out of range, or none is given.
    Invalid,
    /// It would have no effect in this mode.
    Mode,
    /// It would have no effect in this phase, or not any more.
    Phase,
    /// It is too late to cancel.
    TooLate,
    /// The migration has ended.
    Ended,
    /// A reason that this version does not know.
    #[serde(other)]
    Other,
}

impl Outcome {
    /// A refusal. A message that is too long is cut.
    pub fn refused(reason: RefusalReason, message: impl Into<String>) -> Self {
        let mut message = message.into();
        let end = (0..=MESSAGE_BYTES.min(message.len()))
            .rev()
            .find(|&end| message.is_char_boundary(end));
        message.truncate(end.unwrap_or(0));
        Self::Refused(Refusal { reason, message })
    }
}

/// What every message has.
#[derive(Deserialize)]
pub(crate) struct Versioned {
    pub(crate) version: u64,
}

/// Parses a request. Its version comes first: the rest of another version may be anything.
pub(crate) fn parse_request(line: &[u8]) -> Result<Request, Outcome> {
    let malformed = |error: serde_json::Error| {
        Outcome::refused(
            RefusalReason::Malformed,
            format!("the request cannot be read: {error}"),
        )
    };
    let Versioned { version } = serde_json::from_slice(line).map_err(malformed)?;
    if version != u64::from(VERSION) {
        return Err(Outcome::refused(
            RefusalReason::Version,
            format!("the request has version {version}, and this engine has version {VERSION}"),
        ));
    }
    serde_json::from_slice(line).map_err(malformed)
}

/// A message as a line.
pub(crate) fn line(message: &impl Serialize) -> Vec<u8> {
    // The messages have no maps with other keys than strings, the only way to fail.
    let mut line = serde_json::to_vec(message).unwrap_or_default();
    line.push(b'\n');
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(command: &str) -> String {
        format!(r#"{{"version":1,"key":"k","command":{command}}}"#)
    }

    fn parsed(command: &str) -> Command {
        parse_request(request(command).as_bytes()).unwrap().command
    }

    fn reason(line: &[u8]) -> RefusalReason {
        match parse_request(line) {
            Err(Outcome::Refused(refusal)) => refusal.reason,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn requests_are_read() {
        assert_eq!(parsed(r#""switch""#), Command::Switch);
        assert_eq!(parsed(r#""cancel""#), Command::Cancel);
        for (json, bandwidth, max_downtime_ms) in [
            (r"{}", None, None),
            (r#"{"bandwidth":null}"#, Some(None), None),
            (r#"{"bandwidth":7}"#, Some(Some(7)), None),
            (r#"{"max_downtime_ms":9}"#, None, Some(9)),
        ] {
            let set = Set {
                bandwidth,
                max_downtime_ms,
            };
            assert_eq!(
                parsed(&format!(r#"{{"set":{json}}}"#)),
                Command::Set(set),
                "{json}"
            );
            let written = serde_json::to_string(&set).unwrap();
            assert_eq!(written, json);
        }
    }

    #[test]
    fn other_requests_are_refused() {
        for bad in [
            "",
            "{}",
            "[]",
            "null",
            "\u{0}",
            r#"{"version":-1}"#,
            r#"{"version":1}"#,
            &request(r#""stop""#),
            &request(r#"{"set":{"bandwidth":-1}}"#),
            &request(r#"{"set":{"bandwidth":1.5}}"#),
            &request(r#"{"set":{"bandwidth":18446744073709551616}}"#),
            &request(r#"{"set":{"speed":1}}"#),
            &request(r#"{"set":{}},"more":1"#),
            &request(r#"{"set":{},"switch":null}"#),
        ] {
            assert_eq!(reason(bad.as_bytes()), RefusalReason::Malformed, "{bad}");
        }
        assert_eq!(reason(b"\xff"), RefusalReason::Malformed);
        assert_eq!(
            reason(br#"{"version":2,"anything":[]}"#),
            RefusalReason::Version
        );
    }

    #[test]
    fn an_answer_fits_into_a_line() {
        // Each character of this message is longer as JSON.
        let refused = Outcome::refused(RefusalReason::Mode, "\u{1}".repeat(5000));
        let answer = Answer {
            version: VERSION,
            outcome: refused,
        };
        let line = line(&answer);
        assert!(line.len() <= MAX_LINE, "{}", line.len());
        assert_eq!(serde_json::from_slice::<Answer>(&line).unwrap(), answer);
        let Outcome::Refused(cut) = Outcome::refused(RefusalReason::Mode, "é".repeat(5000)) else {
            panic!("a refusal");
        };
        assert!(cut.message.len() <= MESSAGE_BYTES && cut.message.ends_with('é'));
    }

    proptest::proptest! {
        #[test]
        fn any_line_is_answered(line: Vec<u8>, text in "\\PC{0,40}") {
            for line in [line, request(&text).into_bytes()] {
                if let Err(outcome) = parse_request(&line) {
                    let answer = Answer { version: VERSION, outcome };
                    proptest::prop_assert!(super::line(&answer).len() <= MAX_LINE);
                }
            }
        }
    }

    #[test]
    fn a_reason_of_a_later_version_is_read() {
        let json = r#"{"version":1,"outcome":{"refused":{"reason":"later","message":"m"}}}"#;
        let answer: Answer = serde_json::from_str(json).unwrap();
        let expected = Outcome::refused(RefusalReason::Other, "m");
        assert_eq!(answer.outcome, expected);
    }
}
