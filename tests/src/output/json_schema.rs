//! Checks the program's output against the published schemas.
//!
//! Supports the part of JSON Schema that this file uses, and fails on any other keyword. A complete
//! validator takes minutes to compile.

use std::path::Path;

use serde_json::Value;

/// A published schema.
#[derive(Debug)]
pub struct JsonSchema(Value);

impl JsonSchema {
    /// Reads the schema of the output: `docs/assets/schemas/json.schema.json`.
    ///
    /// # Panics
    /// When the file does not exist.
    pub fn published() -> Self {
        Self::read("json.schema.json")
    }

    /// Reads the schema of the status: `docs/assets/schemas/status.schema.json`.
    ///
    /// # Panics
    /// When the file does not exist.
    pub fn of_status() -> Self {
        Self::read("status.schema.json")
    }

    /// Reads the schema of requests to a control socket: `docs/assets/schemas/control.schema.json`.
    ///
    /// # Panics
    /// When the file does not exist.
    pub fn of_control() -> Self {
        Self::read("control.schema.json")
    }

    fn read(name: &str) -> Self {
        let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/assets/schemas");
        let text = std::fs::read_to_string(docs.join(name)).unwrap();
        Self(serde_json::from_str(&text).unwrap())
    }

    /// Asserts that each line of `text` is valid on standard error, and returns the `end` object of
    /// the last one.
    ///
    /// # Panics
    /// When a line is not valid, or the last one has no `end`.
    pub fn end_of(&self, text: &str) -> Value {
        let mut last = Value::Null;
        for line in text.lines() {
            assert!(last["end"].is_null(), "the end is the last line: {text}");
            last = self.assert("line", line);
        }
        assert!(last["end"].is_object(), "no end: {text}");
        last["end"].take()
    }

    /// Asserts that `text` is valid JSON of that definition, and returns it.
    ///
    /// # Panics
    /// When it is not.
    pub fn assert(&self, definition: &str, text: &str) -> Value {
        let value = serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"));
        if let Err(why) = self.check(&self.0["$defs"][definition], &value) {
            panic!("{why}, as a {definition}: {text}");
        }
        value
    }

    fn check(&self, schema: &Value, value: &Value) -> Result<(), String> {
        for (keyword, wanted) in schema.as_object().ok_or("no such definition")? {
            let holds = match keyword.as_str() {
                "description" => true,
                "$ref" => {
                    let reference = wanted.as_str().and_then(|it| it.split_once('#'));
                    let (file, path) = reference.ok_or("a reference has a '#'")?;
                    let other = (!file.is_empty()).then(|| Self::read(file));
                    let schema = other.as_ref().unwrap_or(self);
                    let to = schema.0.pointer(path);
                    schema.check(to.ok_or("a reference that does not resolve")?, value)?;
                    true
                }
                "oneOf" => {
                    let choices = wanted.as_array().ok_or("oneOf is a list")?;
                    let fits = choices.iter().filter(|one| self.check(one, value).is_ok());
                    fits.count() == 1
                }
                "type" => match wanted.as_array() {
                    Some(types) => types.iter().any(|one| is_a(one, value)),
                    None => is_a(wanted, value),
                },
                "enum" => wanted.as_array().is_some_and(|all| all.contains(value)),
                // Of numbers only (JSON Schema, section 6.2.4 of the validation vocabulary).
                "minimum" => !value.is_number() || value.as_f64() >= wanted.as_f64(),
                "required" => wanted.as_array().is_some_and(|all| {
                    all.iter()
                        .all(|one| one.as_str().is_some_and(|one| value.get(one).is_some()))
                }),
                "additionalProperties" => {
                    let known = &schema["properties"];
                    let names = value
                        .as_object()
                        .into_iter()
                        .flat_map(|object| object.keys());
                    wanted == false && names.into_iter().all(|name| known.get(name).is_some())
                }
                "properties" => {
                    for (name, schema) in
                        wanted.as_object().ok_or("properties must be an object")?
                    {
                        if let Some(value) = value.get(name) {
                            self.check(schema, value)
                                .map_err(|why| format!("{name}: {why}"))?;
                        }
                    }
                    true
                }
                "items" => {
                    for item in value.as_array().into_iter().flatten() {
                        self.check(wanted, item)?;
                    }
                    true
                }
                other => return Err(format!("keyword {other} is not supported")),
            };
            if !holds {
                return Err(format!("{value} is not {keyword} {wanted}"));
            }
        }
        Ok(())
    }
}

fn is_a(name: &Value, value: &Value) -> bool {
    match name.as_str() {
        Some("object") => value.is_object(),
        Some("array") => value.is_array(),
        Some("string") => value.is_string(),
        Some("boolean") => value.is_boolean(),
        Some("null") => value.is_null(),
        Some("number") => value.is_number(),
        Some("integer") => value.is_u64() || value.is_i64(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_values_are_found() {
        let schema = JsonSchema::published();
        let fits = |definition: &str, value: &Value| {
            schema.check(&schema.0["$defs"][definition], value).is_ok()
        };
        let end = serde_json::json!({
            "exit_status": 3, "reason": "link", "guest": "destination", "message": "m",
            "next": null, "resume": "hikkoshi receive --resume=/j",
        });
        assert!(fits("end", &end));
        assert!(fits("line", &serde_json::json!({ "end": end })));
        assert!(fits("file", &serde_json::json!({ "error": end })));
        for (name, bad) in [
            ("exit_status", serde_json::json!(5)),
            ("reason", serde_json::json!("because")),
            ("guest", serde_json::json!(null)),
            ("next", serde_json::json!(1)),
            ("more", serde_json::json!("x")),
        ] {
            let mut end = end.clone();
            end[name] = bad;
            assert!(!fits("end", &end), "{end}");
        }
        assert!(!fits("end", &serde_json::json!({})));
        assert!(!fits("line", &serde_json::json!({ "notice": 1 })));
        assert!(!fits("nothing", &end));
    }
}
