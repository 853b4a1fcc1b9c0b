//! Tells a destination that may have been *ready* that the guest stays here.
//!
//! A source that calls a migration off says so on its links. Where these have failed, or end with
//! the call, the destination may not hear it. If it has said *ready*, it keeps the guest and waits
//! for its source (`docs/protocol.md`). So the source connects once more and says *here: keeps*. The
//! destination declines and ends.

use std::io::{self, ErrorKind};
use std::time::{Duration, Instant};

use hikkoshi_wire::{Capabilities, Limits, MigrationId, Role, ToDestination, ToSource};

use crate::report::Observer;
use crate::source::error::SourceFailure;
use crate::source::switchover::Deadline;
use hikkoshi_handover::SourceStage;
use hikkoshi_link::{HandshakeError, LinkError, Remote, hello, open, split};
use hikkoshi_linux::Cancel;

/// For how long to try. The guest runs meanwhile.
const LIMIT: Duration = Duration::from_secs(10);

/// Between two attempts.
const PAUSE: Duration = Duration::from_millis(50);

/// How long the destination may take to end after it has heard it.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

const DOING: &str = "notifying the destination that the guest stays here";

/// Whether a migration that ends by `cause` may end unheard by the destination.
pub(crate) fn may_be_undelivered(cause: &SourceFailure) -> bool {
    matches!(
        cause,
        SourceFailure::Link { .. } | SourceFailure::PausedTooLong { .. } | SourceFailure::Cancelled
    )
}

/// Tells the destination at `remote` that the guest of migration `id` stays here. Returns when it has
/// ended, when nobody listens there, or after [`LIMIT`] with a notice to `observer`.
pub(crate) fn send(remote: &Remote, id: MigrationId, observer: &dyn Observer) {
    let timed_out = Cancel::new();
    let Ok(_deadline) = Deadline::start(&[], timed_out.clone(), LIMIT) else {
        return report_failure(observer, &"no thread could be started");
    };
    let begun = Instant::now();
    loop {
        let failure = match attempt(remote, id, &timed_out) {
            Ok(()) => return,
            Err(HandshakeError::Connect(error)) if nobody_listens(&error) => return,
            Err(failure) => failure,
        };
        tracing::debug!(%failure, DOING);
        if begun.elapsed() >= LIMIT {
            return report_failure(observer, &failure);
        }
        std::thread::sleep(PAUSE);
    }
}

fn report_failure(observer: &dyn Observer, why: &dyn std::fmt::Display) {
    observer.notice(&format!(
        "the guest keeps running here, but the destination could not be notified: {why}. If \
         'hikkoshi receive' still waits there, stop it, end its QEMU, and remove its journal"
    ));
}

/// An engine that waits for its source listens.
fn nobody_listens(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::ConnectionRefused | ErrorKind::NotFound
    )
}

/// One connection. `Ok` when the destination needs no other one.
fn attempt(remote: &Remote, id: MigrationId, timed_out: &Cancel) -> Result<(), HandshakeError> {
    let (stream, agreed) = open(remote, &hello(Role::Control, id), timed_out)?;
    if !agreed.capabilities.contains(Capabilities::RECOVERY) {
        // It does not wait for its source.
        return Ok(());
    }
    // Nothing but control messages is said here.
    let limits = Limits { pages: 0 };
    let stream = std::sync::Arc::new(stream);
    let (mut reader, mut writer) = split(&stream, limits, timed_out)?;
    writer.set_patience(Some(ANSWER_TIMEOUT));
    reader.set_deadline(Some(Instant::now() + ANSWER_TIMEOUT));
    let stage = SourceStage::Owned.into();
    let said = writer.control(&ToDestination::ResumeRequest { stage });
    let answer = said.and_then(|()| reader.control::<ToSource>());
    stream.shutdown();
    match answer {
        // It may have ended for this, or without it: the next attempt tells.
        Err(error) => Err(io_of(error)),
        Ok(ToSource::Refuse { reason }) => Err(io::Error::other(reason).into()),
        Ok(_) => Ok(()),
    }
}

fn io_of(error: LinkError) -> HandshakeError {
    io::Error::other(error.to_string()).into()
}
