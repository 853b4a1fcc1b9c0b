//! A small QMP client for tests: one command at a time; events are collected with their times.

use crate::LabError;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// QEMU may be busy with its big lock held; after this time it is considered hung.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(120);

/// A QMP event.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// The name, such as `STOP` or `RESUME`.
    pub name: String,
    /// The event's data.
    pub data: Value,
    /// When it arrived.
    pub at: Instant,
    /// When it happened, by the host's wall clock as read by QEMU: since the Unix epoch.
    pub happened: Duration,
}

impl Event {
    /// When it happened. (It may have arrived later: another thread had the processor.)
    pub fn instant(&self) -> Instant {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let ago = now.unwrap_or_default().saturating_sub(self.happened);
        Instant::now().checked_sub(ago).unwrap_or(self.at)
    }
}

/// A connection to a machine's second QMP socket.
#[derive(Debug)]
pub struct Qmp {
    vm: String,
    commands: Mutex<Commands>,
    events: Arc<Events>,
}

#[derive(Debug)]
struct Commands {
    socket: UnixStream,
    answers: Receiver<Value>,
}

#[derive(Debug, Default)]
struct Events {
    list: Mutex<Vec<Event>>,
    arrived: Condvar,
}

impl Qmp {
    /// Performs the QMP handshake on a connected socket.
    pub(crate) fn new(vm: &str, socket: UnixStream) -> Result<Self, LabError> {
        let fail = |reason: String| LabError::Qmp {
            vm: vm.to_owned(),
            command: "greeting".to_owned(),
            reason,
        };
        let reader = socket
            .try_clone()
            .map_err(|error| fail(error.to_string()))?;
        let events = Arc::new(Events::default());
        let (sender, answers) = channel();
        let collected = Arc::clone(&events);
        std::thread::Builder::new()
            .name(format!("qmp-{vm}"))
            .spawn(move || {
                for line in BufReader::new(reader).lines() {
                    let Ok(Ok(message)) = line.map(|line| serde_json::from_str::<Value>(&line))
                    else {
                        return;
                    };
                    if message.get("event").is_some() {
                        collected.push(&message);
                    } else if sender.send(message).is_err() {
                        return;
                    }
                }
            })
            .map_err(|error| fail(error.to_string()))?;
        let qmp = Self {
            vm: vm.to_owned(),
            commands: Mutex::new(Commands { socket, answers }),
            events,
        };
        let greeting = qmp
            .lock()
            .answers
            .recv_timeout(ANSWER_TIMEOUT)
            .map_err(|_| fail("no greeting from QEMU".to_owned()))?;
        if greeting.get("QMP").is_none() {
            return Err(fail(format!("no greeting: {greeting}")));
        }
        qmp.execute("qmp_capabilities", json!({}))?;
        Ok(qmp)
    }

    /// Executes a command and returns its result.
    ///
    /// # Errors
    /// When QEMU refuses it, does not answer, or has ended.
    pub fn execute(&self, command: &str, arguments: Value) -> Result<Value, LabError> {
        let fail = |reason: String| LabError::Qmp {
            vm: self.vm.clone(),
            command: command.to_owned(),
            reason,
        };
        let mut commands = self.lock();
        // Discards late answers of earlier commands.
        while commands.answers.try_recv().is_ok() {}
        let line = format!(
            "{}\n",
            json!({ "execute": command, "arguments": arguments })
        );
        commands
            .socket
            .write_all(line.as_bytes())
            .map_err(|error| fail(error.to_string()))?;
        match commands.answers.recv_timeout(ANSWER_TIMEOUT) {
            Ok(mut answer) => match answer.get_mut("return") {
                Some(value) => Ok(value.take()),
                None => Err(fail(
                    answer["error"]["desc"]
                        .as_str()
                        .map_or_else(|| answer.to_string(), str::to_owned),
                )),
            },
            Err(RecvTimeoutError::Timeout) => Err(fail("no answer".to_owned())),
            Err(RecvTimeoutError::Disconnected) => Err(fail("the connection is closed".to_owned())),
        }
    }

    /// All events so far.
    pub fn events(&self) -> Vec<Event> {
        self.events.lock().clone()
    }

    /// Waits for an event of that name, from number `first` of [`Qmp::events`] on.
    ///
    /// # Errors
    /// When it did not arrive within `timeout`.
    pub fn wait_event(
        &self,
        name: &str,
        first: usize,
        timeout: Duration,
    ) -> Result<Event, LabError> {
        let deadline = Instant::now() + timeout;
        let mut list = self.events.lock();
        loop {
            if let Some(event) = list.iter().skip(first).find(|event| event.name == name) {
                return Ok(event.clone());
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let seen: Vec<_> = list.iter().map(|event| event.name.as_str()).collect();
                return Err(LabError::TimedOut {
                    what: format!("event {name} of {}", self.vm),
                    after: timeout,
                    seen: seen.join(" "),
                });
            }
            list = self
                .events
                .arrived
                .wait_timeout(list, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Commands> {
        self.commands.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Qmp {
    fn drop(&mut self) {
        // Ends the reading thread, whose copy of the socket would keep it open.
        let _ = self.lock().socket.shutdown(std::net::Shutdown::Both);
    }
}

impl Events {
    fn lock(&self) -> MutexGuard<'_, Vec<Event>> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, message: &Value) {
        let part = |name: &str| message["timestamp"][name].as_u64().unwrap_or(0);
        let event = Event {
            name: message["event"].as_str().unwrap_or_default().to_owned(),
            data: message["data"].clone(),
            at: Instant::now(),
            happened: Duration::from_secs(part("seconds"))
                + Duration::from_micros(part("microseconds")),
        };
        self.lock().push(event);
        self.arrived.notify_all();
    }
}
