//! Notifies a destination that may have sent *Ready* that the guest stays here.
//!
//! A source that cancels a migration sends *Cancel* on its links. If the links have failed, the
//! destination may not receive it. If it has sent *Ready*, it keeps the guest and waits for its
//! source (`docs/protocol.md`). So the source connects once more and sends *ResumeRequest* with the
//! stage *Owned*. The destination declines and ends.

use std::io::{self, ErrorKind};
use std::time::{Duration, Instant};

use error_reporter::Report;
use hikkoshi_wire::{Limits, MigrationId, Role, ToDestination, ToSource};

use crate::report::Observer;
use crate::source::error::SourceFailure;
use crate::source::switchover::Deadline;
use hikkoshi_handover::SourceStage;
use hikkoshi_link::{HandshakeError, LinkError, Remote, hello, open, split};
use hikkoshi_linux::CancelFlag;

/// How long to try. The guest runs meanwhile.
const LIMIT: Duration = Duration::from_secs(10);

/// The pause between two attempts.
const PAUSE: Duration = Duration::from_millis(50);

/// How long the destination may take to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

const DOING: &str = "notifying the destination that the guest stays here";

/// Whether a migration that ends by `cause` may not have delivered its *Cancel*.
pub(crate) fn may_be_undelivered(cause: &SourceFailure) -> bool {
    matches!(
        cause,
        SourceFailure::Link { .. } | SourceFailure::PausedTooLong { .. } | SourceFailure::Cancelled
    )
}

/// Notifies the destination at `remote` that the guest of migration `id` stays here. Returns when
/// it has ended, when no process listens there, or after [`LIMIT`] with a notice to `observer`.
pub(crate) fn send(remote: &Remote, id: MigrationId, observer: &dyn Observer) {
    let timed_out = CancelFlag::new();
    let Ok(_deadline) = Deadline::start(&[], timed_out.clone(), LIMIT) else {
        return report_failure(observer, &"no thread could be started");
    };
    let begun = Instant::now();
    loop {
        let failure = match attempt(remote, id, &timed_out) {
            Ok(()) => return,
            Err(HandshakeError::Connect(error)) if connection_refused(&error) => return,
            Err(failure) => failure,
        };
        tracing::debug!(failure = %Report::new(&failure), DOING);
        if begun.elapsed() >= LIMIT {
            return report_failure(observer, &Report::new(&failure));
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

/// Whether no process listens: an engine that waits for its source would.
fn connection_refused(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::ConnectionRefused | ErrorKind::NotFound
    )
}

/// Makes one connection. `Ok` if the destination needs no other one.
fn attempt(remote: &Remote, id: MigrationId, timed_out: &CancelFlag) -> Result<(), HandshakeError> {
    let (stream, _) = open(remote, &hello(Role::Control, id), timed_out)?;
    // Only control messages are sent here.
    let limits = Limits { pages: 0 };
    let stream = std::sync::Arc::new(stream);
    let (mut reader, mut writer) = split(&stream, limits, timed_out)?;
    writer.set_progress_timeout(Some(ANSWER_TIMEOUT));
    reader.set_deadline(Some(Instant::now() + ANSWER_TIMEOUT));
    let stage = SourceStage::Owned.into();
    let said = writer.control(&ToDestination::ResumeRequest { stage });
    let answer = said.and_then(|()| reader.control::<ToSource>());
    stream.shutdown();
    match answer {
        // It may have received the message and ended, or not: the next attempt shows.
        Err(error) => Err(io_of(error)),
        Ok(ToSource::Refuse { reason }) => Err(io::Error::other(reason).into()),
        Ok(_) => Ok(()),
    }
}

fn io_of(error: LinkError) -> HandshakeError {
    io::Error::other(error).into()
}
