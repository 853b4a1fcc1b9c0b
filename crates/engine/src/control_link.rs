//! The thread that reads a control link, at either side.

use std::fmt;
use std::io;
use std::sync::mpsc::SyncSender;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use hikkoshi_link::{LinkError, LinkReader};
use hikkoshi_linux::sandbox_thread;
use hikkoshi_wire::{ControlMessage, message_name};

/// The capacity of a session's event queue. It is small, so that a peer that
/// floods the control link blocks itself.
pub(crate) const QUEUED_EVENTS: usize = 16;

/// How long to wait for the reason after a link has failed: the peer's last message may still be on
/// the control link, and a busy host may be slow. The end of the control link ends the wait.
pub(crate) const REASON_TIMEOUT: Duration = Duration::from_secs(2);

/// Starts the sandboxed thread `name`. It sends each message of a control link
/// to `events`, and ends after it has sent the error that ends the link.
///
/// # Errors
/// When the thread cannot be started.
pub(crate) fn start_reader<M, E>(
    name: &str,
    mut reader: LinkReader,
    events: SyncSender<E>,
    event: impl Fn(Result<M, LinkError>) -> E + Send + 'static,
) -> io::Result<JoinHandle<()>>
where
    M: ControlMessage,
    E: Send + 'static,
{
    thread::Builder::new().name(name.into()).spawn(move || {
        sandbox_thread();
        loop {
            let message = reader.control();
            let ended = message.is_err();
            if events.send(event(message)).is_err() || ended {
                return;
            }
        }
    })
}

/// The error for a message, or something in one, that the protocol does not allow here.
pub(crate) fn unexpected_message(message: &impl fmt::Debug) -> LinkError {
    LinkError::Protocol(format!("unexpected message {}", message_name(message)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use hikkoshi_wire::{SourceStage, ToDestination};

    #[test]
    fn an_unexpected_message_is_called_by_its_name() {
        let stage = SourceStage::HandedOver;
        let text = unexpected_message(&ToDestination::ResumeRequest { stage }).to_string();
        assert_eq!(
            text,
            "the peer broke the protocol: unexpected message ResumeRequest"
        );
    }
}
