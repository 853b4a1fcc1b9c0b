//! SIGINT, SIGTERM and SIGHUP request cancellation. They do not kill the program.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use error_reporter::Report;
use hikkoshi_engine::CancelFlag;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::output::exit::{Exit, Status};
use crate::output::reason::Reason;

/// A flag that the first signal sets. Later signals change nothing: the engine decides whether the
/// migration can still be cancelled.
pub(super) fn cancel_on_signals() -> Result<CancelFlag, Exit> {
    let cancel = CancelFlag::new();
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        register(signal, cancel.flag())?;
    }
    Ok(cancel)
}

/// The same without SIGHUP, which does nothing: the end of a session does not cancel.
pub(super) fn cancel_except_on_hangup() -> Result<CancelFlag, Exit> {
    let cancel = CancelFlag::new();
    for signal in [SIGINT, SIGTERM] {
        register(signal, cancel.flag())?;
    }
    register(SIGHUP, Arc::default())?;
    Ok(cancel)
}

fn register(signal: i32, flag: Arc<AtomicBool>) -> Result<(), Exit> {
    let registered = signal_hook::flag::register(signal, flag);
    registered.map(drop).map_err(|error| {
        let what = format!("installing a signal handler: {}", Report::new(&error));
        Exit::new(Status::Usage, Reason::System, what)
    })
}
