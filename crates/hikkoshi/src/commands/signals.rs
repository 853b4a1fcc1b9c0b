//! SIGINT, SIGTERM and SIGHUP request cancellation. They do not kill the program.

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
        signal_hook::flag::register(signal, cancel.flag()).map_err(|error| {
            let what = format!("installing a signal handler: {}", Report::new(&error));
            Exit::new(Status::Usage, Reason::System, what)
        })?;
    }
    Ok(cancel)
}
