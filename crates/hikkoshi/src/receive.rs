//! `hikkoshi receive`.

use hikkoshi_engine::destination::DestinationFailure;
use hikkoshi_engine::link::Listener;
use hikkoshi_engine::{Outcome, ReceiveWatch, receive};
use hikkoshi_qemu::QemuDestination;

use crate::args::Receive;
use crate::exit::{Exit, Status};
use crate::migrate::{finish, require_encryption};
use crate::{progress, signals};

pub fn run(args: &Receive) -> Result<Status, Exit> {
    require_encryption(&args.listen, &args.common)?;
    let cancel = signals::cancel_on_signals()?;
    let mut guest = QemuDestination::attach(&args.common.qmp)
        .map_err(|error| Exit::new(Status::AtSource, error))?;
    guest.give_up_when(cancel.clone());
    guest
        .cancel_when_gone(cancel.clone())
        .map_err(|error| Exit::new(Status::AtSource, format!("watching QEMU: {error}")))?;
    let listener = Listener::bind(&args.listen).map_err(|error| {
        Exit::new(
            Status::Usage,
            format!("listening at {}: {error}", args.listen),
        )
    })?;
    let observer = progress::observer(args.common.progress);
    observer.notice(&format!("waiting for a guest at {}", listener.address()));
    let watch = ReceiveWatch { cancel, observer };
    match receive(&mut guest, &listener, &args.options(), &watch) {
        Ok(account) => {
            finish(&account, &args.common, "the guest runs here")?;
            Ok(Status::Moved)
        }
        Err(error) => {
            let next = match error.outcome {
                Outcome::AtSource => {
                    "the guest stays at the source; start this QEMU anew before the next try"
                }
                Outcome::Paused => {
                    "the guest has never run here, and nothing of it is lost: keep both QEMU \
                     processes. Unless 'hikkoshi migrate' says that the guest has run at the \
                     destination, end this QEMU and let the source's go on with the QMP command \
                     'cont', if it does not run already"
                }
                Outcome::AtDestination => {
                    "the guest has run here and stands still now, for want of pages that are \
                     still at the source; nothing of it is lost: keep both QEMU processes, and \
                     never continue the source's"
                }
            };
            // A wait that no signal has ended.
            if matches!(error.cause, DestinationFailure::Cancelled) && guest.has_ended() {
                let what = "waiting for a guest: this QEMU has ended, and can take none in";
                return Err(Exit::new(error.outcome.into(), what).with(next));
            }
            Err(Exit::new(error.outcome.into(), error).with(next))
        }
    }
}
