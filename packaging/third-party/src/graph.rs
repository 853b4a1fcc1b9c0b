//! Which crates a program is linked with, from the output of `cargo metadata`.

use std::collections::{BTreeSet, HashMap};
use std::path::PathBuf;

use serde_json::Value;
use thiserror::Error;

/// A crate of another project.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Linked {
    /// Its name.
    pub(crate) name: String,
    /// Its version.
    pub(crate) version: String,
    /// Its licence, as an SPDX expression.
    pub(crate) licence: String,
    /// The folder of its source.
    pub(crate) folder: PathBuf,
}

/// The output of cargo has another form than expected.
#[derive(Debug, Error)]
pub(crate) enum GraphError {
    #[error("the output of cargo metadata has no {0}")]
    Missing(&'static str),
    #[error("{0} has no licence in its manifest (ask its authors, or do without it)")]
    NoLicence(String),
}

/// The crates that `program`, a member of the workspace, is linked with, members excluded.
pub(crate) fn linked(metadata: &Value, program: &str) -> Result<Vec<Linked>, GraphError> {
    let packages = list(metadata, "packages")?;
    let by_id: HashMap<&str, &Value> = packages
        .iter()
        .filter_map(|one| Some((one["id"].as_str()?, one)))
        .collect();
    let nodes: HashMap<&str, &Value> = list(&metadata["resolve"], "nodes")?
        .iter()
        .filter_map(|one| Some((one["id"].as_str()?, one)))
        .collect();
    let members: BTreeSet<&str> = list(metadata, "workspace_members")?
        .iter()
        .filter_map(Value::as_str)
        .collect();
    let start = members
        .iter()
        .find(|id| by_id.get(**id).is_some_and(|one| one["name"] == program))
        .ok_or(GraphError::Missing("member of that name"))?;

    let mut reached = BTreeSet::from([*start]);
    let mut open = vec![*start];
    while let Some(id) = open.pop() {
        let node = nodes
            .get(id)
            .ok_or(GraphError::Missing("node of a crate"))?;
        for dependency in list(node, "deps")? {
            let target = dependency["pkg"].as_str();
            let target = target.ok_or(GraphError::Missing("crate of a dependency"))?;
            let package = by_id.get(target).ok_or(GraphError::Missing("crate"))?;
            // A kind of null is a normal dependency, others are "build" and "dev".
            let kinds = list(dependency, "dep_kinds")?;
            let normal = kinds.iter().any(|kind| kind["kind"].is_null());
            if normal && !is_macro(package) && reached.insert(target) {
                open.push(target);
            }
        }
    }
    let mut crates = reached
        .difference(&members)
        .map(|id| crate_of(by_id[id]))
        .collect::<Result<Vec<_>, _>>()?;
    crates.sort();
    Ok(crates)
}

fn is_macro(package: &Value) -> bool {
    let targets = package["targets"].as_array().into_iter().flatten();
    let mut kinds = targets.flat_map(|target| target["kind"].as_array().into_iter().flatten());
    kinds.any(|kind| kind == "proc-macro")
}

fn crate_of(package: &Value) -> Result<Linked, GraphError> {
    let text = |key: &'static str| package[key].as_str().ok_or(GraphError::Missing(key));
    let name = text("name")?.to_owned();
    let mut folder = PathBuf::from(text("manifest_path")?);
    folder.pop();
    let licence = package["license"].as_str();
    Ok(Linked {
        licence: licence
            .ok_or_else(|| GraphError::NoLicence(name.clone()))?
            .replace('/', " OR "),
        version: text("version")?.to_owned(),
        folder,
        name,
    })
}

fn list<'a>(of: &'a Value, key: &'static str) -> Result<&'a Vec<Value>, GraphError> {
    of[key].as_array().ok_or(GraphError::Missing(key))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a test's failure is the message

    use serde_json::json;

    use super::*;

    fn package(name: &str, kind: &str, licence: Value) -> Value {
        json!({ "id": name, "name": name, "version": "1.0.0", "license": licence,
                "manifest_path": format!("/crates/{name}/Cargo.toml"),
                "targets": [{ "kind": [kind] }] })
    }

    fn node(name: &str, dependencies: &[(&str, Value)]) -> Value {
        let deps: Vec<_> = dependencies
            .iter()
            .map(|(pkg, kind)| json!({ "pkg": pkg, "dep_kinds": [{ "kind": kind }] }))
            .collect();
        json!({ "id": name, "deps": deps })
    }

    fn metadata(licence_of_far: Value) -> Value {
        let mit = json!("MIT/Apache-2.0");
        json!({
            "workspace_members": ["program", "own", "other-program"],
            "packages": [
                package("program", "bin", mit.clone()), package("own", "lib", mit.clone()),
                package("other-program", "bin", mit.clone()), package("near", "lib", mit.clone()),
                package("far", "lib", licence_of_far), package("macro", "proc-macro", mit.clone()),
                package("below-macro", "lib", mit.clone()), package("built", "lib", mit.clone()),
                package("tested", "lib", mit.clone()), package("foreign", "lib", mit),
            ],
            "resolve": { "nodes": [
                node("program", &[("own", Value::Null), ("macro", Value::Null), ("tested", json!("dev"))]),
                node("own", &[("near", Value::Null), ("built", json!("build"))]),
                node("other-program", &[("foreign", Value::Null)]),
                node("near", &[("far", Value::Null)]), node("far", &[("near", Value::Null)]),
                node("macro", &[("below-macro", Value::Null)]), node("below-macro", &[]),
                node("built", &[]), node("tested", &[]), node("foreign", &[]),
            ] },
        })
    }

    #[test]
    fn what_is_linked_is_listed_and_what_only_builds_or_tests_is_not() {
        let crates = linked(&metadata(json!("ISC")), "program").unwrap();
        let names: Vec<_> = crates.iter().map(|one| one.name.as_str()).collect();
        assert_eq!(names, ["far", "near"]);
        assert_eq!(crates[1].licence, "MIT OR Apache-2.0");
        assert_eq!(crates[0].folder, PathBuf::from("/crates/far"));
    }

    #[test]
    fn a_crate_without_a_licence_is_an_error() {
        let error = linked(&metadata(Value::Null), "program").unwrap_err();
        assert!(
            error.to_string().starts_with("far has no licence"),
            "{error}"
        );
        assert!(linked(&metadata(json!("MIT")), "nothing").is_err());
        assert!(linked(&json!({}), "program").is_err());
    }
}
