//! A property of an object, as on the command line.

use serde_json::Value;

/// A property as on the command line; `None` if it is not set.
pub(super) fn property_text(value: Option<Value>) -> Option<String> {
    match value? {
        Value::String(text) if !text.is_empty() => Some(text),
        Value::Number(number) => Some(number.to_string()),
        Value::Bool(flag) => Some(if flag { "on" } else { "off" }.to_owned()),
        _ => None,
    }
}
