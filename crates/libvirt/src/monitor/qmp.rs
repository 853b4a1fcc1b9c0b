//! Translates between QMP's lines and libvirt's strings.

use serde_json::{Map, Value, json};

/// What a client asks for.
#[derive(Debug, PartialEq)]
pub(crate) enum Request {
    /// To enter command mode: libvirt has done it long ago.
    Capabilities { id: Value },
    /// A command for QEMU: JSON without an identifier, because libvirt adds one of its own.
    Command { id: Value, json: String },
}

/// Parses a client's line.
pub(crate) fn request(line: &[u8]) -> Option<Request> {
    let Ok(Value::Object(mut object)) = serde_json::from_slice(line) else {
        return None;
    };
    let id = object.remove("id").unwrap_or(Value::Null);
    match object.get("execute")?.as_str()? {
        "qmp_capabilities" => Some(Request::Capabilities { id }),
        _ => Some(Request::Command {
            id,
            json: Value::Object(object).to_string(),
        }),
    }
}

/// QEMU's greeting, from its answer to `query-version`.
pub(crate) fn greeting(version: &str) -> Option<String> {
    let answer: Value = serde_json::from_str(version).ok()?;
    let version = answer.get("return")?;
    Some(line(
        &json!({ "QMP": { "version": version, "capabilities": [] } }),
    ))
}

/// The answer to a command, from what libvirt returned.
pub(crate) fn answer(id: Value, returned: &str) -> String {
    match serde_json::from_str(returned) {
        Ok(Value::Object(mut answer)) => {
            answer.insert("id".to_owned(), id);
            line(&Value::Object(answer))
        }
        _ => error(id, "libvirt returned something else than a QMP answer"),
    }
}

/// The answer to `qmp_capabilities`.
pub(crate) fn empty_answer(id: Value) -> String {
    line(&json!({ "return": {}, "id": id }))
}

/// The answer to a command that libvirt did not execute.
pub(crate) fn error(id: Value, description: &str) -> String {
    line(&json!({ "error": { "class": "GenericError", "desc": description }, "id": id }))
}

/// An event. `details` is JSON, or nothing.
pub(crate) fn event(name: &str, seconds: i64, micros: u32, details: Option<&str>) -> String {
    let timestamp = json!({ "seconds": seconds, "microseconds": micros });
    let mut event = Map::new();
    event.insert("timestamp".to_owned(), timestamp);
    event.insert("event".to_owned(), name.into());
    let data = details.and_then(|details| serde_json::from_str::<Value>(details).ok());
    if let Some(data) = data {
        event.insert("data".to_owned(), data);
    }
    line(&Value::Object(event))
}

fn line(value: &Value) -> String {
    format!("{value}\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn commands_lose_their_identifier_and_answers_get_it_back() {
        let asked = br#"{"execute": "stop", "arguments": {"x": [1]}, "id": 7}"#;
        let Some(Request::Command { id, json }) = request(asked) else {
            panic!("a command");
        };
        assert_eq!(json, r#"{"arguments":{"x":[1]},"execute":"stop"}"#);
        assert_eq!(
            answer(id.clone(), r#"{"return": {}, "id": "libvirt-17"}"#),
            "{\"id\":7,\"return\":{}}\n"
        );
        let refused = r#"{"id": "libvirt-18", "error": {"class": "GenericError", "desc": "no"}}"#;
        assert!(answer(id.clone(), refused).contains(r#""desc":"no""#));
        assert!(answer(id, "[]").contains("something else"));
    }

    #[test]
    fn capabilities_are_answered_here() {
        let asked = br#"{"execute": "qmp_capabilities", "id": 1}"#;
        assert_eq!(request(asked), Some(Request::Capabilities { id: json!(1) }));
    }

    #[test]
    fn events_have_the_time_of_qemu() {
        let stop = event("STOP", 5, 17, None);
        assert_eq!(
            stop,
            "{\"event\":\"STOP\",\"timestamp\":{\"microseconds\":17,\"seconds\":5}}\n"
        );
        let shutdown = event("SHUTDOWN", 5, 17, Some(r#"{"guest":true}"#));
        assert!(shutdown.contains(r#""data":{"guest":true}"#), "{shutdown}");
    }

    #[test]
    fn a_greeting_has_qemus_version() {
        let version =
            r#"{"return": {"qemu": {"micro": 2, "minor": 0, "major": 10}, "package": ""}}"#;
        let greeting = greeting(version).unwrap();
        assert!(greeting.starts_with(r#"{"QMP":{"#), "{greeting}");
        assert!(greeting.contains(r#""major":10"#), "{greeting}");
    }

    proptest! {
        #[test]
        fn any_line_is_a_request_or_not(bytes: Vec<u8>) {
            let _ = request(&bytes);
        }

        #[test]
        fn any_answer_is_one_line(text: String) {
            let answer = answer(json!(1), &text);
            prop_assert_eq!(answer.matches('\n').count(), 1);
            prop_assert!(answer.ends_with('\n'));
        }
    }
}
