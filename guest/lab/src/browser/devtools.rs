//! The DevTools protocol over a pipe: JSON messages, each followed by a zero byte
//! (<https://chromedevtools.github.io/devtools-protocol/>).

use super::events::Events;
use crate::LabError;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{ChildStdin, ChildStdout};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// How long an answer may take. Only ends a test that hangs.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(120);
/// The length of a message, bytes: far more than a screenshot of a long page.
const MESSAGE_LIMIT: u64 = 256 << 20;

/// The connection to a browser, and to its page.
#[derive(Debug)]
pub(super) struct DevTools {
    /// Closed if empty.
    to_browser: Option<ChildStdin>,
    /// Answers and events, in order.
    messages: Receiver<Value>,
    next_id: u64,
    /// The session with the page, after [`attach`](Self::attach).
    session: Option<String>,
    /// What the page has reported.
    pub(super) events: Events,
}

impl DevTools {
    /// Starts the thread that reads the browser's messages. It ends with the browser.
    pub(super) fn new(to_browser: ChildStdin, from_browser: ChildStdout) -> Result<Self, LabError> {
        let (sender, messages) = channel();
        std::thread::Builder::new()
            .name("devtools".to_owned())
            .spawn(move || {
                let mut from_browser = BufReader::new(from_browser);
                while let Some(message) = read_message(&mut from_browser) {
                    if sender.send(message).is_err() {
                        return;
                    }
                }
            })
            .map_err(|source| LabError::Start {
                program: "the thread that reads the browser's messages".to_owned(),
                source,
            })?;
        Ok(Self {
            to_browser: Some(to_browser),
            messages,
            next_id: 0,
            session: None,
            events: Events::default(),
        })
    }

    /// Opens a page, to which all later commands go.
    pub(super) fn attach(&mut self) -> Result<(), LabError> {
        let page = self.call("Target.createTarget", json!({ "url": "about:blank" }))?;
        let target = json!({ "targetId": page["targetId"], "flatten": true });
        let attached = self.call("Target.attachToTarget", target)?;
        self.session = attached["sessionId"].as_str().map(str::to_owned);
        match self.session {
            Some(_) => Ok(()),
            None => Err(self.error("attaching to the page", format!("it answers {attached}"))),
        }
    }

    /// Sends a command and returns its result. Events that arrive before it are recorded.
    pub(super) fn call(&mut self, command: &str, arguments: Value) -> Result<Value, LabError> {
        let answer = self.request(command, arguments)?;
        answer.map_err(|refused| self.error(command, refused))
    }

    /// Sends a command, and returns what the browser answers, also if it refuses.
    fn request(
        &mut self,
        command: &str,
        arguments: Value,
    ) -> Result<Result<Value, String>, LabError> {
        self.next_id += 1;
        let id = self.next_id;
        let mut message = json!({ "id": id, "method": command, "params": arguments });
        if let Some(session) = &self.session {
            message["sessionId"] = json!(session);
        }
        let sent = match &mut self.to_browser {
            Some(pipe) => pipe.write_all(format!("{message}\0").as_bytes()),
            None => Err(std::io::ErrorKind::BrokenPipe.into()),
        };
        sent.map_err(|error| self.error(command, error.to_string()))?;
        let deadline = Instant::now() + ANSWER_TIMEOUT;
        loop {
            // An answer with another number is a late one, to a command that has timed out.
            let Some(mut message) = self.receive(command, deadline)? else {
                return Err(self.error(command, "no answer in two minutes".to_owned()));
            };
            if message["id"] != json!(id) {
                continue;
            }
            if let Some(error) = message["error"]["message"].as_str() {
                return Ok(Err(error.to_owned()));
            }
            return Ok(Ok(message["result"].take()));
        }
    }

    /// The value of an expression, or the text of what it throws. While the page is left for
    /// another one, the browser refuses to evaluate anything: that counts as thrown.
    pub(super) fn evaluate(&mut self, expression: &str) -> Result<Result<Value, String>, LabError> {
        let arguments = json!({
            "expression": expression,
            "returnByValue": true,
            "awaitPromise": true,
        });
        let mut answer = match self.request("Runtime.evaluate", arguments)? {
            Ok(answer) => answer,
            Err(refused) => return Ok(Err(refused)),
        };
        Ok(match answer.get("exceptionDetails") {
            Some(details) => Err(super::events::exception_text(details)),
            None => Ok(answer["result"]["value"].take()),
        })
    }

    /// Waits for one more event. False at the deadline.
    pub(super) fn wait_event(&mut self, deadline: Instant) -> Result<bool, LabError> {
        let message = self.receive("waiting for an event", deadline)?;
        Ok(message.is_some())
    }

    /// The next message, recorded if it is an event.
    fn receive(&mut self, doing: &str, deadline: Instant) -> Result<Option<Value>, LabError> {
        let left = deadline.saturating_duration_since(Instant::now());
        match self.messages.recv_timeout(left) {
            Ok(message) => {
                self.events.record(&message);
                match self.events.crashed() {
                    true => Err(self.error(doing, "the page has crashed".to_owned())),
                    false => Ok(Some(message)),
                }
            }
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => {
                Err(self.error(doing, "the browser has ended".to_owned()))
            }
        }
    }

    /// An error with the page's messages.
    pub(super) fn error(&self, doing: &str, reason: String) -> LabError {
        LabError::Browser {
            doing: doing.to_owned(),
            reason,
            messages: self.events.messages(),
        }
    }

    /// Closes the connection: the browser ends.
    pub(super) fn close(&mut self) {
        self.to_browser = None;
    }
}

/// The next message, or `None` at the end, or if it is not JSON or too long.
fn read_message(from: &mut impl BufRead) -> Option<Value> {
    let mut message = Vec::new();
    from.take(MESSAGE_LIMIT).read_until(0, &mut message).ok()?;
    serde_json::from_slice(message.strip_suffix(&[0])?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_end_with_a_zero_byte() {
        let mut pipe = &b"{\"id\":1}\0{\"method\":\"a\"}\0{\"id\""[..];
        assert_eq!(read_message(&mut pipe), Some(json!({ "id": 1 })));
        assert_eq!(read_message(&mut pipe), Some(json!({ "method": "a" })));
        assert_eq!(read_message(&mut pipe), None, "it is cut off");
        assert_eq!(read_message(&mut pipe), None, "the end");
    }
}
