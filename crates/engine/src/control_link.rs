//! The thread that reads a control link, at either side.

use std::fmt::{self, Write};
use std::io;
use std::sync::mpsc::SyncSender;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use hikkoshi_link::{LinkError, LinkReader};
use hikkoshi_linux::sandbox_thread;
use hikkoshi_wire::ControlMessage;

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

/// The error for a message, or something in one, that the protocol does not allow here. Of a
/// message it has the name only: the fields say nothing to a person.
pub(crate) fn unexpected_message(message: &impl fmt::Debug) -> LinkError {
    let mut name = MessageName::default();
    // An error ends the formatting: a message can be large.
    let _ = write!(name, "{message:?}");
    LinkError::Protocol(format!("unexpected message {}", name.0))
}

/// The most characters of something that has no name.
const MAX_NAME: usize = 200;

/// The beginning of a value's text: of a structure its name.
#[derive(Default)]
struct MessageName(String);

impl fmt::Write for MessageName {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for character in text.chars() {
            // `Name { fields }`
            let ends = self.0.starts_with(char::is_alphabetic) && character == ' ';
            if ends || self.0.len() >= MAX_NAME {
                return Err(fmt::Error);
            }
            self.0.push(character);
        }
        Ok(())
    }
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
        let end = |value: &dyn fmt::Debug| {
            let text = unexpected_message(&value).to_string();
            let (_, end) = text.split_once("message ").unwrap();
            end.to_owned()
        };
        assert_eq!(end(&ToDestination::Goodbye), "Goodbye");
        assert_eq!(end(&"3 pages owed (here: 2)"), "\"3 pages owed (here: 2)\"");
        assert_eq!(end(&[4096, 4096]), "[4096, 4096]");
        assert_eq!(end(&Some(8..24)), "Some(8..24)");
        assert_eq!(end(&"x".repeat(1 << 20)).len(), MAX_NAME);
    }
}
