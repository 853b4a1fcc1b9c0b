//! Compares a bill of materials with the crates that the program is linked with.

use std::collections::BTreeSet;

use serde_json::Value;
use thiserror::Error;

use crate::graph::Linked;

/// The bill is not complete, or not one.
#[derive(Debug, Error)]
pub(crate) enum SbomError {
    #[error("it is not a bill of materials in CycloneDX's JSON format")]
    Format,
    #[error("it does not name {}", .0.join(", "))]
    Missing(Vec<String>),
    #[error("no licence is given for {}", .0.join(", "))]
    NoLicence(Vec<String>),
}

/// Checks that `bill` names each of the crates, with its version and a licence.
pub(crate) fn check(bill: &Value, crates: &[Linked]) -> Result<usize, SbomError> {
    let components = bill["components"].as_array().ok_or(SbomError::Format)?;
    if bill["bomFormat"] != "CycloneDX" {
        return Err(SbomError::Format);
    }
    let mut named = BTreeSet::new();
    let mut without = Vec::new();
    for component in components {
        let (Some(name), Some(version)) =
            (component["name"].as_str(), component["version"].as_str())
        else {
            return Err(SbomError::Format);
        };
        if component["licenses"].as_array().is_none_or(Vec::is_empty) {
            without.push(name.to_owned());
        }
        named.insert(format!("{name} {version}"));
    }
    let linked = crates
        .iter()
        .map(|one| format!("{} {}", one.name, one.version));
    let missing: Vec<_> = linked.filter(|one| !named.contains(one)).collect();
    if !missing.is_empty() {
        return Err(SbomError::Missing(missing));
    }
    if !without.is_empty() {
        return Err(SbomError::NoLicence(without));
    }
    Ok(named.len())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a test's failure is the message

    use serde_json::json;

    use super::*;

    #[test]
    fn each_linked_crate_must_be_named_in_its_version_with_a_licence() {
        let linked = |version: &str| Linked {
            name: "ring".to_owned(),
            version: version.to_owned(),
            licence: "ISC".to_owned(),
            folder: "/crates/ring".into(),
        };
        let mut bill = json!({ "bomFormat": "CycloneDX", "components": [
            { "name": "ring", "version": "1.0.0", "licenses": [{ "expression": "ISC" }] },
        ] });
        assert_eq!(check(&bill, &[linked("1.0.0")]).unwrap(), 1);
        let error = check(&bill, &[linked("1.0.1")]).unwrap_err();
        assert_eq!(error.to_string(), "it does not name ring 1.0.1");
        bill["components"][0]["licenses"] = json!([]);
        assert!(matches!(
            check(&bill, &[linked("1.0.0")]),
            Err(SbomError::NoLicence(_))
        ));
        assert!(matches!(check(&json!({}), &[]), Err(SbomError::Format)));
    }
}
