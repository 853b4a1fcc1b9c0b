//! `hikkoshi migrate`.

use hikkoshi_engine::link::Address;
use hikkoshi_engine::{Mode, Outcome, SourceGuest, Watch, migrate};
use hikkoshi_qemu::QemuSource;

use crate::args::{Common, Migrate};
use crate::exit::{Exit, Status};
use crate::guard::Guard;
use crate::signals::{self, TooLate};
use crate::{progress, report, say};

pub fn run(args: &Migrate) -> Result<Status, Exit> {
    require_encryption(&args.address, &args.common)?;
    let cancel = signals::cancel_on_signals()?;
    let options = args.options();
    let untouched = "the guest runs on at the source; nothing was changed";
    let mut guest = QemuSource::attach(&args.common.qmp)
        .map_err(|error| Exit::new(Status::AtSource, error).with(untouched))?;
    // After attaching: without the right to trace the probe fails, too.
    require_dirty_log(args.mode)?;
    let mut guard = Guard::start(&args.common.qmp, &mut guest).map_err(|error| {
        Exit::new(
            Status::AtSource,
            format!("starting the guard process: {error}"),
        )
        .with(untouched)
    })?;
    let observer = progress::observer(args.common.progress);
    let too_late = TooLate::new(cancel.clone(), observer);
    let moved = migrate(
        &mut guest,
        &args.address,
        &options,
        &mut Watch {
            cancel,
            observer: too_late.observer(),
            point_of_no_return: &mut || {
                guard.release()?;
                too_late.begin();
                Ok(())
            },
        },
    );
    drop(too_late);
    match moved {
        Ok(account) => {
            finish(&account, &args.common, "the guest runs at the destination")?;
            Ok(Status::Moved)
        }
        Err(error) => {
            let next = match error.outcome {
                Outcome::AtSource if guest.has_ended() => {
                    "the source's QEMU has ended, and the guest with it"
                }
                Outcome::AtSource if guest.is_stuck() => {
                    "the guest is paused at the source, as it was; but this old QEMU calls that \
                     'postmigrate' now, and does not move it again before it has run (QMP command \
                     'cont')"
                }
                Outcome::AtSource if !guest.describe().running => {
                    "the guest is paused at the source, as it was"
                }
                Outcome::AtSource => "the guest runs on at the source",
                Outcome::Paused => {
                    "the guest is paused on both hosts and nothing of it is lost: keep both QEMU \
                     processes. See what 'hikkoshi receive' says: if it never said that the guest \
                     runs there, end the destination's QEMU and let the source's go on with the \
                     QMP command 'cont'; otherwise never continue it here"
                }
                Outcome::AtDestination => {
                    "the guest has run at the destination: never continue it here. If it lacks \
                     pages ('hikkoshi receive' says so) it stands still there; they are still \
                     here, and nothing of it is lost: keep both QEMU processes"
                }
            };
            Err(Exit::new(error.outcome.into(), error).with(next))
        }
    }
}

/// Refuses a mode that this machine's kernel cannot do, before anybody is
/// bothered.
pub fn require_dirty_log(mode: Mode) -> Result<(), Exit> {
    if mode == Mode::Postcopy {
        return Ok(());
    }
    hikkoshi_dirty::support().map_err(|error| {
        Exit::new(Status::AtSource, error)
            .with("the guest runs on at the source; --mode postcopy needs no dirty log")
    })
}

/// Refuses TCP beyond this machine unless it was asked for aloud.
pub fn require_encryption(address: &Address, common: &Common) -> Result<(), Exit> {
    let local = address
        .is_local()
        .map_err(|error| Exit::new(Status::Usage, error))?;
    if local || common.plaintext {
        return Ok(());
    }
    Err(Exit::new(
        Status::Usage,
        format!(
            "{address} is beyond this machine, and links are not encrypted yet: anybody on the way \
             could read and change the guest's memory"
        ),
    )
    .with("on a network that you trust, say --plaintext; otherwise use a tunnel"))
}

/// Tells and writes the account.
pub fn finish(account: &hikkoshi_engine::Account, common: &Common, what: &str) -> Result<(), Exit> {
    if common.json.as_deref() != Some("-".as_ref()) {
        say::to_stdout(&format!("{what}\n{}", report::readable(account)));
    }
    if let Some(path) = &common.json {
        report::write_json(account, path).map_err(|error| {
            // The move itself is done; the status must say so.
            Exit::new(
                Status::Moved,
                format!(
                    "{what}, but writing the account to {}: {error}",
                    path.display()
                ),
            )
        })?;
    }
    Ok(())
}
