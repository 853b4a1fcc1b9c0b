//! Ctrl-C and SIGTERM ask a migration to stop; they never kill it.

use hikkoshi_engine::Cancel;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::exit::{Exit, Status};

/// A flag that the first signal sets. Later ones change nothing: whether a
/// migration can stop is the engine's to say.
pub fn cancel_on_signals() -> Result<Cancel, Exit> {
    let cancel = Cancel::new();
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, cancel.flag())
            .map_err(|error| Exit::new(Status::Usage, format!("handling signals: {error}")))?;
    }
    Ok(cancel)
}
