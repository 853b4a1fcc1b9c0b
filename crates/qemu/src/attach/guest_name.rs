//! How the owner of a guest calls it: `-name` of QEMU.

use serde_json::{Value, json};

use crate::qmp::{Client, QmpError};

/// The longest name that is used, in characters.
const LONGEST: usize = 200;

/// The name, if the guest has one.
pub(crate) fn read(client: &mut Client) -> Result<Option<String>, QmpError> {
    let answer = client.execute("query-name", json!({}))?;
    Ok(answer.get("name").and_then(Value::as_str).and_then(name))
}

/// What is shown of a name: one line that is not too long.
fn name(text: &str) -> Option<String> {
    let shown = text.chars().filter(|c| !c.is_control());
    let shown: String = shown.take(LONGEST).collect();
    let shown = shown.trim();
    (!shown.is_empty()).then(|| shown.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_one_short_line() {
        assert_eq!(name("web").as_deref(), Some("web"));
        assert_eq!(name(" web\n\u{1b}[2J1 ").as_deref(), Some("web[2J1"));
        assert_eq!(name(" \n"), None);
        assert_eq!(name(&"x".repeat(1000)).unwrap().len(), LONGEST);
    }
}
