//! The log, selected by `HIKKOSHI_LOG`. It has the format of the other output on standard error.

use std::ffi::OsStr;
use std::fmt::{self, Write as _};

use serde_json::{Map, Value};
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;

use crate::output::exit::{Exit, ExitStatus};
use crate::output::reason::Reason;
use crate::output::{line_format, streams};

/// The environment variable.
const VARIABLE: &str = "HIKKOSHI_LOG";

/// The log level if the variable is not set.
const DEFAULT: &str = "warn";

/// The prefix of this project's crates.
const CRATES: &str = "hikkoshi";

/// Starts logging, including panics.
pub(crate) fn start() -> Result<(), Exit> {
    let filter = filter(std::env::var_os(VARIABLE).as_deref())?;
    tracing_subscriber::registry()
        .with(Lines.with_filter(filter))
        .init();
    std::panic::set_hook(Box::new(|panic| {
        write(&Level::ERROR, "panic", &panic.to_string(), Map::new());
    }));
    Ok(())
}

/// Parses the variable: `LEVEL` or `CRATE=LEVEL`, separated by commas.
fn filter(variable: Option<&OsStr>) -> Result<Targets, Exit> {
    let text = match variable {
        None => DEFAULT,
        Some(text) => text.to_str().ok_or_else(|| unknown(text))?,
    };
    let text = if text.is_empty() { DEFAULT } else { text };
    for part in text.split(',') {
        let level = match part.split_once('=') {
            Some((name, level)) if is_ours(name) => level,
            Some(_) => return Err(unknown(part)),
            None => part,
        };
        if !matches!(level, "off" | "error" | "warn" | "info" | "debug" | "trace") {
            return Err(unknown(part));
        }
    }
    text.parse().map_err(|_| unknown(text))
}

/// Whether it is a crate or module of this project; others log nothing.
fn is_ours(name: &str) -> bool {
    name.starts_with(CRATES)
        && name
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || c == '_' || c == ':')
}

fn unknown(part: impl AsRef<OsStr>) -> Exit {
    let part = part.as_ref().to_string_lossy();
    let what = format!("{VARIABLE}: '{part}' is not a level, and not CRATE=LEVEL");
    Exit::new(ExitStatus::Usage, Reason::Usage, what).with(
        "levels are off, error, warn, info, debug and trace; for one crate, hikkoshi_qemu=debug; \
         separate several with commas",
    )
}

/// Writes each event as a line.
struct Lines;

impl<S: Subscriber> Layer<S> for Lines {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        let metadata = event.metadata();
        write(
            metadata.level(),
            metadata.target(),
            &fields.message,
            fields.rest,
        );
    }
}

fn write(level: &Level, target: &str, message: &str, fields: Map<String, Value>) {
    let level = level.as_str().to_ascii_lowercase();
    if line_format::is_json() {
        let log = serde_json::json!({
            "level": level,
            "target": target,
            "message": message,
            "fields": fields,
        });
        return streams::log_object(&log);
    }
    let mut text = format!("{level}: {message}");
    for (name, value) in &fields {
        // Writing to a String cannot fail.
        let _ = match value {
            Value::String(value) => write!(text, " {name}={value}"),
            value => write!(text, " {name}={value}"),
        };
    }
    streams::log_text(&text);
}

/// The fields of one event.
#[derive(Default)]
struct Fields {
    message: String,
    rest: Map<String, Value>,
}

impl Fields {
    fn set(&mut self, field: &Field, value: Value) {
        self.rest.insert(field.name().to_owned(), value);
    }
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let text = format!("{value:?}");
        if field.name() == "message" {
            self.message = text;
        } else {
            self.set(field, text.into());
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.set(field, value.into());
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.set(field, value.into());
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.set(field, value.into());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.set(field, value.into());
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.set(field, value.into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_levels_are_refused() {
        for good in [
            "debug",
            "off",
            "hikkoshi_qemu=trace",
            "warn,hikkoshi_engine=debug,hikkoshi_qemu::qmp=off",
            "",
        ] {
            assert!(filter(Some(good.as_ref())).is_ok(), "{good}");
        }
        assert!(filter(None).is_ok());
        // These would log nothing, or everything, without an error.
        for bad in [
            "verbose",
            "DEBUG!",
            "qemu=debug",
            "hikkoshi_qemu",
            "warn,",
            "=debug",
            "3",
        ] {
            assert!(filter(Some(bad.as_ref())).is_err(), "{bad}");
        }
    }
}
