//! What programs read of the release is still there, with the type that it had: `tests/released`
//! has its schemas.
//!
//! After a release, copy `docs/assets/schemas/*.schema.json` there.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

/// A value that a schema describes.
#[derive(Debug, Default, PartialEq)]
struct Field {
    types: BTreeSet<String>,
    /// The values that it may have, if they are listed.
    values: BTreeSet<String>,
    required: bool,
}

/// What a schema describes, by the way from a definition: `#end.resume`, `#state.rounds[].pages`.
type Fields = BTreeMap<String, Field>;

/// Who reads what a schema describes.
#[derive(Clone, Copy, Debug, PartialEq)]
enum ReadBy {
    /// Programs of others: what is required stays so.
    Others,
    /// hikkoshi: nothing more is required.
    Us,
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
        let mut fields = Fields::new();
        for (name, schema) in self.0[file]["$defs"].as_object().unwrap() {
            self.describe(schema, file, &format!("#{name}"), &mut fields, &mut vec![]);
        }
        fields
    }

    fn describe(
        &self,
        schema: &Value,
        file: &str,
        at: &str,
        fields: &mut Fields,
        inside: &mut Vec<String>,
    ) {
        if let Some(reference) = schema["$ref"].as_str() {
            let (other, path) = reference.split_once('#').unwrap();
            let file = if other.is_empty() { file } else { other };
            let full = format!("{file}#{path}");
            if !inside.contains(&full) {
                inside.push(full);
                let target = self.0[file].pointer(path).unwrap();
                self.describe(target, file, at, fields, inside);
                inside.pop();
            }
        }
        let field = fields.entry(at.to_owned()).or_default();
        let types = match &schema["type"] {
            Value::Array(types) => types.clone(),
            Value::Null => vec![],
            one => vec![one.clone()],
        };
        field.types.extend(types.iter().map(Value::to_string));
        let values = schema["enum"].as_array().into_iter().flatten();
        field.values.extend(values.map(Value::to_string));
        for name in schema["required"].as_array().into_iter().flatten() {
            let at = format!("{at}.{}", name.as_str().unwrap());
            fields.entry(at).or_default().required = true;
        }
        for (name, schema) in schema["properties"].as_object().into_iter().flatten() {
            self.describe(schema, file, &format!("{at}.{name}"), fields, inside);
        }
        if schema["items"].is_object() {
            self.describe(&schema["items"], file, &format!("{at}[]"), fields, inside);
        }
        for one in schema["oneOf"].as_array().into_iter().flatten() {
            self.describe(one, file, at, fields, inside);
        }
    }
}

/// What of `kept` does not hold `now`.
fn broken(kept: &Fields, now: &Fields, read_by: ReadBy) -> Vec<String> {
    let mut broken = Vec::new();
    for (at, kept) in kept {
        let Some(now) = now.get(at) else {
            broken.push(format!("{at} is gone"));
            continue;
        };
        if now.types != kept.types {
            broken.push(format!("{at} is {:?}, not {:?}", now.types, kept.types));
        }
        let gone: Vec<_> = kept.values.difference(&now.values).collect();
        if !gone.is_empty() {
            broken.push(format!("{at} is never {gone:?}"));
        }
        if read_by == ReadBy::Others && kept.required && !now.required {
            broken.push(format!("{at} may be missing"));
        }
    }
    if read_by == ReadBy::Us {
        let more = now.iter().filter(|(at, now)| {
            let parent = at.rsplit_once('.').map_or("", |(parent, _)| parent);
            let before = kept.get(*at).is_some_and(|kept| kept.required);
            now.required && !before && kept.contains_key(parent)
        });
        broken.extend(more.map(|(at, _)| format!("{at} is required")));
    }
    broken
}

#[test]
fn released_fields_are_still_there() {
    let tests = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let kept = Schemas::read(&tests.join("released"));
    let now = Schemas::read(&tests.join("../docs/assets/schemas"));
    for (file, read_by) in [
        ("json.schema.json", ReadBy::Others),
        ("status.schema.json", ReadBy::Others),
        ("control.schema.json", ReadBy::Us),
    ] {
        let (kept, now) = (kept.fields(file), now.fields(file));
        assert!(!kept.is_empty());
        let broken = broken(&kept, &now, read_by);
        assert!(broken.is_empty(), "{file}: {broken:#?}");
    }
    let statuses = &kept.fields("json.schema.json")["#end.exit_status"].values;
    assert_eq!(statuses.len(), 5, "{statuses:?}");
}

#[test]
fn a_changed_field_is_found() {
    let fields = |end: Value| {
        let schema = json!({ "$defs": { "end": end } });
        Schemas([("a".to_owned(), schema)].into()).fields("a")
    };
    let schema = || {
        json!({
            "type": "object", "required": ["status"],
            "properties": {
                "status": { "enum": [0, 1] },
                "again": { "$ref": "#/$defs/end" },
                "list": { "type": "array", "items": { "oneOf": [{ "type": "string" }] } },
            },
        })
    };
    let kept = fields(schema());
    let changed = |change: &dyn Fn(&mut Value), read_by| {
        let mut schema = schema();
        change(&mut schema);
        broken(&kept, &fields(schema), read_by)
    };
    for (change, read_by, expected) in [
        (
            (&|schema: &mut Value| schema["properties"]["more"] = json!({ "type": "null" }))
                as &dyn Fn(&mut Value),
            ReadBy::Others,
            None,
        ),
        (
            &|schema| schema["properties"]["status"]["enum"] = json!([0, 2]),
            ReadBy::Others,
            Some("#end.status is never"),
        ),
        (
            &|schema| schema["properties"]["list"]["items"] = json!({ "type": "integer" }),
            ReadBy::Others,
            Some("#end.list[] is"),
        ),
        (
            &|schema| schema["properties"]["list"] = json!({ "type": "array" }),
            ReadBy::Others,
            Some("#end.list[] is gone"),
        ),
        (
            &|schema| schema["required"] = json!([]),
            ReadBy::Others,
            Some("#end.status may be missing"),
        ),
        (&|schema| schema["required"] = json!([]), ReadBy::Us, None),
        (
            &|schema| schema["required"] = json!(["status", "list"]),
            ReadBy::Us,
            Some("#end.list is required"),
        ),
        (
            &|schema| schema["required"] = json!(["status", "list"]),
            ReadBy::Others,
            None,
        ),
    ] {
        let found = changed(change, read_by);
        match expected {
            None => assert_eq!(found, [""; 0]),
            Some(expected) => {
                assert!(
                    found.iter().any(|one| one.starts_with(expected)),
                    "{found:?}"
                );
            }
        }
    }
}
