//! SIGINT, SIGTERM and SIGHUP request cancellation, or do nothing. They do not kill the program.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use error_reporter::Report;
use hikkoshi_engine::CancelFlag;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};

use crate::output::exit::{Exit, ExitStatus};
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

/// A flag that the first signal sets, but not SIGHUP, which does nothing: the end of a session does
/// not cancel.
pub(super) fn cancel_except_on_hangup() -> Result<CancelFlag, Exit> {
    let cancel = CancelFlag::new();
    for signal in [SIGINT, SIGTERM] {
        register(signal, cancel.flag())?;
    }
    register(SIGHUP, Arc::default())?;
    Ok(cancel)
}

/// From now on none of them does anything.
pub(super) fn ignore_signals() -> Result<(), Exit> {
    for signal in [SIGHUP, SIGINT, SIGTERM] {
        register(signal, Arc::default())?;
    }
    Ok(())
}

/// Set by SIGUSR1, in a receiver of a daemon.
static WITHDRAWN: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// From now on SIGUSR1 says that the invitation is withdrawn.
pub(super) fn note_withdrawal() -> Result<(), Exit> {
    register(SIGUSR1, Arc::clone(WITHDRAWN.get_or_init(Arc::default)))
}

/// Whether the invitation was withdrawn.
pub(super) fn is_withdrawn() -> bool {
    WITHDRAWN
        .get()
        .is_some_and(|withdrawn| withdrawn.load(Ordering::Relaxed))
}

fn register(signal: i32, flag: Arc<AtomicBool>) -> Result<(), Exit> {
    let registered = signal_hook::flag::register(signal, flag);
    registered.map(drop).map_err(|error| {
        let what = format!("installing a signal handler: {}", Report::new(&error));
        Exit::new(ExitStatus::Usage, Reason::System, what)
    })
}
