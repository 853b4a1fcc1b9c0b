//! Queries of QEMU's object tree (QOM).

use serde_json::{Value, json};

use crate::qmp::{Client, QmpError};

/// `TYPE` of the `child<TYPE>` in a QOM listing.
pub(crate) fn child_type(listed: &str) -> Option<&str> {
    listed.strip_prefix("child<")?.strip_suffix('>')
}

/// The children of a QOM node: name and type. Empty if there is no such node.
pub(crate) fn children(client: &mut Client, path: &str) -> Result<Vec<(String, String)>, QmpError> {
    let listed = match client.execute("qom-list", json!({ "path": path })) {
        Ok(listed) => listed,
        Err(error) if error.is_refusal() => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let rows = listed
        .as_array()
        .ok_or_else(|| QmpError::unexpected("qom-list", "not a list"))?;
    Ok(rows
        .iter()
        .filter_map(|row| {
            let name = row.get("name")?.as_str()?;
            let kind = child_type(row.get("type")?.as_str()?)?;
            Some((name.to_owned(), kind.to_owned()))
        })
        .collect())
}

/// A property of an object; `None` if it has no such property.
pub(crate) fn property(
    client: &mut Client,
    path: &str,
    name: &str,
) -> Result<Option<Value>, QmpError> {
    match client.execute("qom-get", json!({ "path": path, "property": name })) {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.is_refusal() => Ok(None),
        Err(error) => Err(error),
    }
}
