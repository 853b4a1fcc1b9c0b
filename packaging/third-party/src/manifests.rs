//! What the manifest of a crate must have before it is published.

use std::path::Path;

use serde_json::Value;
use thiserror::Error;

use crate::graph::GraphError;

/// A crate cannot be published as it is.
#[derive(Debug, Error)]
pub(crate) enum ManifestError {
    #[error(transparent)]
    Graph(#[from] GraphError),
    #[error("{}", .0.join("\n"))]
    Incomplete(Vec<String>),
}

/// The names of the workspace's crates that can be published, in the order of the manifest.
pub(crate) fn published(metadata: &Value) -> Result<Vec<&Value>, GraphError> {
    let packages = metadata["packages"].as_array();
    let packages = packages.ok_or(GraphError::Missing("packages"))?;
    // `publish` is null for every registry, and an empty list for none. `source` is null for the
    // members of the workspace.
    let own = packages.iter().filter(|one| one["source"].is_null());
    Ok(own.filter(|one| one["publish"].is_null()).collect())
}

/// Checks each of them.
pub(crate) fn check(metadata: &Value) -> Result<usize, ManifestError> {
    let crates = published(metadata)?;
    let mut missing = Vec::new();
    for one in &crates {
        let name = one["name"].as_str().unwrap_or("?");
        for key in [
            "description",
            "documentation",
            "license",
            "readme",
            "rust_version",
        ] {
            if one[key].as_str().is_none_or(str::is_empty) {
                missing.push(format!("{name}: {key} is missing in Cargo.toml"));
            }
        }
        for key in ["keywords", "categories"] {
            let count = one[key].as_array().map_or(0, Vec::len);
            if !(1..=5).contains(&count) {
                missing.push(format!(
                    "{name}: {key} has {count} entries, 1 to 5 are wanted"
                ));
            }
        }
        let folder = one["manifest_path"].as_str().map(Path::new);
        let readme = folder
            .and_then(Path::parent)
            .and_then(|folder| std::fs::read_to_string(folder.join("README.md")).ok())
            .unwrap_or_default();
        if !readme.starts_with(&format!("# {name}\n")) {
            missing.push(format!(
                "{name}: README.md does not begin with the crate's name"
            ));
        }
        for feature in one["features"]
            .as_object()
            .into_iter()
            .flat_map(|all| all.keys())
        {
            if !readme.contains(&format!("`{feature}`")) {
                missing.push(format!(
                    "{name}: README.md does not explain the feature {feature}"
                ));
            }
        }
        for dependency in one["dependencies"].as_array().into_iter().flatten() {
            if let Some(wrong) = wrong_version(dependency) {
                missing.push(format!(
                    "{name}: the dependency {} {wrong}",
                    dependency["name"]
                ));
            }
        }
    }
    missing.extend(later_rust(metadata, &crates));
    match missing.is_empty() {
        true => Ok(crates.len()),
        false => Err(ManifestError::Incomplete(missing)),
    }
}

/// What is wrong with the version that a crate requires of another.
fn wrong_version(dependency: &Value) -> Option<String> {
    let required = dependency["req"].as_str().unwrap_or("*");
    let is_exact = required.split(',').any(|one| one.trim().starts_with('='));
    match dependency["path"].is_string() {
        // Dependencies of tests are left out of the package if they have a path only.
        true if dependency["kind"] == "dev" => None,
        true if required == "*" => Some("has no version".into()),
        true if !is_exact => Some(format!(
            "is required as {required}: the crates of this workspace require each other's exact \
             versions, which are tested together"
        )),
        false if is_exact => Some(format!(
            "is required as {required}: a program that needs a later version of it could not use \
             this crate"
        )),
        _ => None,
    }
}

/// The crates of others that say they need a later compiler than this workspace.
fn later_rust(metadata: &Value, own: &[&Value]) -> Vec<String> {
    let number = |one: &Value| -> Option<Vec<u64>> {
        let parts = one["rust_version"].as_str()?.split('.');
        let mut parts: Vec<_> = parts.map(|part| part.parse().ok()).collect::<Option<_>>()?;
        // 1.90 is 1.90.0.
        parts.resize(3, 0);
        Some(parts)
    };
    let Some(ours) = own.iter().filter_map(|one| number(one)).min() else {
        return Vec::new();
    };
    let packages = metadata["packages"].as_array().into_iter().flatten();
    packages
        .filter(|one| !one["source"].is_null() && number(one).is_some_and(|theirs| theirs > ours))
        .map(|one| {
            let [name, version, rust] =
                ["name", "version", "rust_version"].map(|key| one[key].as_str().unwrap_or("?"));
            format!("{name} {version} needs Rust {rust}, and rust-version in Cargo.toml is earlier")
        })
        .collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a test's failure is the message

    use serde_json::json;

    use super::*;

    #[test]
    fn a_crate_needs_what_its_readers_want() {
        let folder = tempfile::tempdir().unwrap();
        let manifest = folder.path().join("Cargo.toml");
        let mut metadata = json!({ "packages": [
            { "name": "foreign", "source": "registry+x", "publish": null, "rust_version": "1.90.0" },
            { "name": "internal", "source": null, "publish": [] },
            { "name": "own", "source": null, "publish": null, "description": "d",
              "documentation": "https://docs.rs/own", "license": "MIT", "readme": "README.md",
              "rust_version": "1.90",
              "keywords": ["k"], "categories": ["c"], "features": { "f": [] },
              "manifest_path": manifest,
              "dependencies": [{ "name": "other", "path": "/other", "kind": null, "req": "=1.0.0" },
                               { "name": "lab", "path": "/lab", "kind": "dev", "req": "*" },
                               { "name": "foreign", "kind": null, "req": "^1.2.3" }] },
        ] });
        std::fs::write(folder.path().join("README.md"), "# own\n\n`f` does it.\n").unwrap();
        assert_eq!(check(&metadata).unwrap(), 1);

        metadata["packages"][0]["rust_version"] = json!("1.100");
        let dependencies = &mut metadata["packages"][2]["dependencies"];
        dependencies[0]["req"] = json!("^1.0.0");
        dependencies[2]["req"] = json!("=1.2.3");
        let error = check(&metadata).unwrap_err().to_string();
        for part in ["as ^1.0.0", "as =1.2.3", "needs Rust 1.100"] {
            assert!(error.contains(part), "{part}: {error}");
        }

        let own = &mut metadata["packages"][2];
        own["description"] = json!(null);
        own["documentation"] = json!("");
        own["keywords"] = json!([]);
        own["dependencies"][0]["req"] = json!("*");
        std::fs::write(folder.path().join("README.md"), "# other\n").unwrap();
        let error = check(&metadata).unwrap_err().to_string();
        for part in [
            "description",
            "documentation",
            "keywords",
            "begin with",
            "feature f",
            "no version",
        ] {
            assert!(error.contains(part), "{part}: {error}");
        }
    }
}
