//! What programs read of the release is still there, with the type that it had: `tests/released`
//! has its schemas.
//!
//! After a release, copy `docs/assets/schemas/*.schema.json` there.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

/// A value that a schema describes.
#[derive(Clone, Debug, Default, PartialEq)]
struct Field {
    types: BTreeSet<String>,
    /// The values that it may have, if they are listed.
    values: BTreeSet<String>,
    /// The least number.
    minimum: Option<f64>,
    required: bool,
}

/// What a schema describes, by the path from a definition: `#end.resume`, `#state.rounds[].pages`.
type Fields = BTreeMap<String, Field>;

/// Who reads what a definition describes.
#[derive(Clone, Copy, Debug, PartialEq)]
enum ReadBy {
    /// Programs of others: what they rely on stays.
    Clients,
    /// hikkoshi: what they send is still accepted.
    Hikkoshi,
}

impl ReadBy {
    /// Who reads what that definition describes.
    fn of(at: &str) -> Self {
        match at.starts_with("#request") {
            true => Self::Hikkoshi,
            false => Self::Clients,
        }
    }
}

/// Schemas that refer to each other, by their files' names.
struct Schemas(BTreeMap<String, Value>);

impl Schemas {
    fn read(folder: &Path) -> Self {
        let names = ["json", "status", "control"].map(|name| format!("{name}.schema.json"));
        let read = |name: String| {
            let text = std::fs::read_to_string(folder.join(&name)).unwrap();
            (name, serde_json::from_str(&text).unwrap())
        };
        Self(names.into_iter().map(read).collect())
    }

    /// What the definitions of that file describe.
    fn fields(&self, file: &str) -> Fields {
        let definitions = self.0[file]["$defs"].as_object().unwrap();
        let described = definitions.iter().map(|(name, schema)| {
            let at = format!("#{name}");
            self.describe(schema, file, &at, &mut vec![])
        });
        described.flatten().collect()
    }

    /// What a schema describes, at that path. `inside`: the references that led here.
    fn describe(&self, schema: &Value, file: &str, at: &str, inside: &mut Vec<String>) -> Fields {
        let mut all = Fields::new();
        let mut here = Field::default();
        for (keyword, value) in schema.as_object().unwrap() {
            match keyword.as_str() {
                "description" | "additionalProperties" => {}
                "$ref" => {
                    let (other, path) = value.as_str().unwrap().split_once('#').unwrap();
                    let file = if other.is_empty() { file } else { other };
                    let full = format!("{file}#{path}");
                    if !inside.contains(&full) {
                        inside.push(full);
                        let target = self.0[file].pointer(path).unwrap();
                        join(&mut all, self.describe(target, file, at, inside));
                        inside.pop();
                    }
                }
                "type" => {
                    let types = value
                        .as_array()
                        .map_or(std::slice::from_ref(value), Vec::as_slice);
                    here.types.extend(types.iter().map(Value::to_string));
                }
                "enum" => {
                    let values = value.as_array().unwrap();
                    here.values.extend(values.iter().map(Value::to_string));
                }
                "minimum" => here.minimum = value.as_f64(),
                "required" => {
                    for name in value.as_array().unwrap() {
                        let required = Field {
                            required: true,
                            ..Field::default()
                        };
                        let at = format!("{at}.{}", name.as_str().unwrap());
                        join(&mut all, [(at, required)].into());
                    }
                }
                "properties" => {
                    for (name, schema) in value.as_object().unwrap() {
                        let at = format!("{at}.{name}");
                        join(&mut all, self.describe(schema, file, &at, inside));
                    }
                }
                "items" => {
                    let at = format!("{at}[]");
                    join(&mut all, self.describe(value, file, &at, inside));
                }
                "oneOf" => {
                    let choices = value.as_array().unwrap();
                    let choices: Vec<Fields> = choices
                        .iter()
                        .map(|one| self.describe(one, file, at, inside))
                        .collect();
                    join(&mut all, either(choices));
                }
                other => panic!("keyword {other} at {at} is not compared"),
            }
        }
        join(&mut all, [(at.to_owned(), here)].into());
        all
    }
}

/// Adds what another part of the same schema says.
fn join(all: &mut Fields, more: Fields) {
    for (at, more) in more {
        let field = all.entry(at).or_default();
        field.types.extend(more.types);
        field.values.extend(more.values);
        field.minimum = field.minimum.or(more.minimum);
        field.required |= more.required;
    }
}

/// What one of several schemas says: required is what each requires.
fn either(choices: Vec<Fields>) -> Fields {
    let is_required = |at: &String| {
        let requires = |fields: &Fields| fields.get(at).is_some_and(|field| field.required);
        choices.iter().all(requires)
    };
    let mut all = Fields::new();
    for choice in &choices {
        join(&mut all, choice.clone());
    }
    for (at, field) in &mut all {
        field.required = is_required(at);
    }
    all
}

/// Which promises of `kept` are broken by `now`.
fn broken(kept: &Fields, now: &Fields) -> Vec<String> {
    let mut broken = Vec::new();
    for (at, kept) in kept {
        let Some(now) = now.get(at) else {
            broken.push(format!("{at} is gone"));
            continue;
        };
        let gone: Vec<_> = kept.values.difference(&now.values).collect();
        if !gone.is_empty() && !now.values.is_empty() {
            broken.push(format!("{at} is never {gone:?}"));
        }
        match ReadBy::of(at) {
            ReadBy::Clients => {
                if now.types != kept.types {
                    broken.push(format!("{at} is {:?}, not {:?}", now.types, kept.types));
                }
                if kept.required && !now.required {
                    broken.push(format!("{at} may be missing"));
                }
            }
            ReadBy::Hikkoshi => {
                if !now.types.is_superset(&kept.types) {
                    broken.push(format!("{at} must be {:?}", now.types));
                }
                let is_limited = kept.values.is_empty() && !now.values.is_empty();
                if is_limited || now.minimum > kept.minimum {
                    broken.push(format!("{at} has new limits"));
                }
            }
        }
    }
    let more = now.iter().filter(|(at, now)| {
        let parent = at.rsplit_once('.').map_or("", |(parent, _)| parent);
        let before = kept.get(*at).is_some_and(|kept| kept.required);
        let is_new = now.required && !before && kept.contains_key(parent);
        is_new && ReadBy::of(at) == ReadBy::Hikkoshi
    });
    broken.extend(more.map(|(at, _)| format!("{at} is required")));
    broken
}

#[test]
fn released_fields_are_still_there() {
    let tests = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let kept = Schemas::read(&tests.join("released"));
    let now = Schemas::read(&tests.join("../docs/assets/schemas"));
    for file in [
        "json.schema.json",
        "status.schema.json",
        "control.schema.json",
    ] {
        let (kept, now) = (kept.fields(file), now.fields(file));
        assert!(!kept.is_empty());
        let broken = broken(&kept, &now);
        assert!(
            broken.is_empty(),
            "{file}: released, and no longer so: {broken:#?} (before 0.1.0: copy \
             docs/assets/schemas/*.schema.json to tests/released)"
        );
    }
    let statuses = &kept.fields("json.schema.json")["#end.exit_status"].values;
    assert_eq!(statuses.len(), 5, "{statuses:?}");
}

#[test]
fn a_changed_field_is_found() {
    let fields = |name: &str, definition: Value| {
        let schema = json!({ "$defs": { name: definition } });
        let text = schema
            .to_string()
            .replace("#/$defs/me", &format!("#/$defs/{name}"));
        let schema = serde_json::from_str(&text).unwrap();
        Schemas([("a".to_owned(), schema)].into()).fields("a")
    };
    let schema = || {
        json!({
            "type": "object", "required": ["status"],
            "properties": {
                "status": { "enum": [0, 1] },
                "again": { "$ref": "#/$defs/me" },
                "list": { "type": "array", "items": { "type": "string" } },
                "what": { "oneOf": [
                    { "type": "object", "required": ["a"], "properties": { "a": { "type": "string" } } },
                    { "type": "object", "required": ["b"], "properties": { "b": { "type": "integer", "minimum": 1 } } },
                ] },
            },
        })
    };
    type Change<'a> = &'a dyn Fn(&mut Value);
    let more: Change<'_> = &|schema| schema["properties"]["more"] = json!({ "type": "null" });
    let other_value: Change<'_> = &|schema| schema["properties"]["status"]["enum"] = json!([0, 2]);
    let other_type: Change<'_> =
        &|schema| schema["properties"]["list"]["items"]["type"] = json!("integer");
    let more_types: Change<'_> =
        &|schema| schema["properties"]["list"]["items"]["type"] = json!(["string", "null"]);
    let no_items: Change<'_> = &|schema| schema["properties"]["list"] = json!({ "type": "array" });
    let limited: Change<'_> =
        &|schema| schema["properties"]["list"]["items"]["enum"] = json!(["x"]);
    let optional: Change<'_> = &|schema| schema["required"] = json!([]);
    let required: Change<'_> = &|schema| schema["required"] = json!(["status", "list"]);
    let higher: Change<'_> =
        &|schema| schema["properties"]["what"]["oneOf"][1]["properties"]["b"]["minimum"] = json!(2);
    let choice: Change<'_> = &|schema| {
        let choices = schema["properties"]["what"]["oneOf"]
            .as_array_mut()
            .unwrap();
        choices.push(json!({ "type": "object", "required": ["c"], "properties": { "c": { "type": "null" } } }));
    };
    for (change, to_clients, to_us) in [
        (more, "", ""),
        (other_value, ".status is never", ".status is never"),
        (other_type, ".list[] is", ".list[] must be"),
        (more_types, ".list[] is", ""),
        (no_items, ".list[] is gone", ".list[] is gone"),
        (limited, "", ".list[] has new limits"),
        (optional, ".status may be missing", ""),
        (required, "", ".list is required"),
        (higher, "", ".what.b has new limits"),
        (choice, "", ""),
    ] {
        for (name, expected) in [("end", to_clients), ("request", to_us)] {
            let mut changed = schema();
            change(&mut changed);
            let found = broken(&fields(name, schema()), &fields(name, changed.clone()));
            match expected {
                "" => assert_eq!(found, [""; 0], "{name}: {changed}"),
                expected => {
                    let expected = format!("#{name}{expected}");
                    let is_found = found.iter().any(|one| one.starts_with(&expected));
                    assert!(is_found, "{expected}: {found:?}");
                }
            }
        }
    }
}
