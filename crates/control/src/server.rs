//! Serves the control socket of this process.
//!
//! One thread does everything and waits for nothing but the clients. A silent client keeps one of
//! the few places for [`TIME_LIMIT`]; more clients wait until a place is free.

use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use hikkoshi_linux::bind_unix;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::connection::{Connection, Next};
use crate::folder::{ControlFolder, ControlFolderError};
use crate::key::Key;
use crate::{Command, Outcome};

/// The most clients at once.
const CLIENTS: usize = 8;

/// How long a connection may take, from its beginning to its end.
const TIME_LIMIT: Duration = Duration::from_secs(5);

/// How long to wait after the system has refused something, before it is tried again.
const RETRY_DELAY: Duration = Duration::from_millis(100);

/// A control socket. Dropping it ends its thread, and removes it.
#[derive(Debug)]
pub struct ControlServer {
    /// Dropped first: the thread sees its end.
    running: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
    files: [PathBuf; 2],
}

/// The control socket cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum ControlServerError {
    /// Its folder cannot be used.
    #[error(transparent)]
    Folder(#[from] ControlFolderError),
    /// The socket itself, or its key.
    #[error("making the control socket {}", socket.display())]
    Socket {
        /// The socket.
        socket: PathBuf,
        /// The reason.
        #[source]
        cause: io::Error,
    },
    /// Its thread.
    #[error("starting the thread of the control socket")]
    Thread(#[source] io::Error),
}

impl ControlServer {
    /// Makes the socket of the migration with this name. `handle` does what is asked for; it is
    /// called on the server's thread, and must return at once.
    ///
    /// # Errors
    /// If the folder, the socket, its key or the thread cannot be made.
    pub fn start(
        folder: &ControlFolder,
        name: &str,
        handle: impl FnMut(Command) -> Outcome + Send + 'static,
    ) -> Result<Self, ControlServerError> {
        Self::start_with(TIME_LIMIT, folder, name, handle)
    }

    /// Makes the socket; a connection may take `limit`.
    fn start_with(
        limit: Duration,
        folder: &ControlFolder,
        name: &str,
        handle: impl FnMut(Command) -> Outcome + Send + 'static,
    ) -> Result<Self, ControlServerError> {
        folder.create()?;
        folder.remove_stale();
        let files = [folder.socket(name), folder.key(name)];
        let [socket, key_file] = &files;
        let failed = |cause| ControlServerError::Socket {
            socket: socket.clone(),
            cause,
        };
        // Before the socket: a client that can connect can read the key.
        let key = Key::create(key_file).map_err(failed)?;
        let listener = bind_unix(socket)
            .and_then(|listener| {
                listener.set_nonblocking(true)?;
                Ok(listener)
            })
            .inspect_err(|_| drop(std::fs::remove_file(key_file)))
            .map_err(failed)?;
        let mut server = Self {
            running: None,
            thread: None,
            files,
        };
        let (running, ended) = UnixStream::pair().map_err(ControlServerError::Thread)?;
        let thread = thread::Builder::new()
            .name("control".into())
            .spawn(move || {
                serve(&listener, limit, &ended, &key, handle);
            });
        server.thread = Some(thread.map_err(ControlServerError::Thread)?);
        server.running = Some(running);
        Ok(server)
    }
}

impl Drop for ControlServer {
    fn drop(&mut self) {
        drop(self.running.take());
        if let Some(thread) = self.thread.take() {
            // A panic was reported; nothing else depends on the thread.
            let _ = thread.join();
        }
        for file in &self.files {
            let _ = std::fs::remove_file(file);
        }
    }
}

/// Serves clients until the other end of `ended` is dropped.
fn serve(
    listener: &UnixListener,
    limit: Duration,
    ended: &UnixStream,
    key: &Key,
    mut handle: impl FnMut(Command) -> Outcome,
) {
    let mut clients: Vec<Connection> = Vec::with_capacity(CLIENTS);
    loop {
        let mut polled = vec![PollFd::new(ended, PollFlags::IN)];
        polled.extend(
            clients
                .iter()
                .map(|client| PollFd::from_borrowed_fd(client.as_fd(), client.waits_for())),
        );
        if clients.len() < CLIENTS {
            polled.push(PollFd::new(listener, PollFlags::IN));
        }
        let next = clients.iter().map(Connection::ends).min();
        let timeout = next.map(|at| at.saturating_duration_since(Instant::now()));
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        if let Err(error) = poll(&mut polled, timeout.as_ref())
            && error != rustix::io::Errno::INTR
        {
            thread::sleep(RETRY_DELAY);
        }
        let has_ended = polled.first().is_some_and(|end| !end.revents().is_empty());
        drop(polled);
        if has_ended {
            return;
        }
        let now = Instant::now();
        clients.retain_mut(|client| {
            client.advance(key, &mut handle) == Next::Wait && client.ends() > now
        });
        accept(listener, limit, &mut clients);
    }
}

/// Accepts clients while there are places.
fn accept(listener: &UnixListener, limit: Duration, clients: &mut Vec<Connection>) {
    while clients.len() < CLIENTS {
        match listener.accept() {
            Ok((stream, _)) => clients.extend(Connection::new(stream, limit)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => {
                // No descriptors are left: the client stays in the queue.
                thread::sleep(RETRY_DELAY);
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::{SendError, send};
    use crate::{Answer, Changed, MAX_LINE, RefusalReason, Set};
    use std::io::{BufRead, BufReader, Read, Write};
    use std::os::unix::fs::PermissionsExt;
    use std::sync::mpsc::{Receiver, channel};

    struct Served {
        _run: tempfile::TempDir,
        folder: ControlFolder,
        server: Option<ControlServer>,
        commands: Receiver<Command>,
    }

    const NAME: &str = "source-1-00112233";
    const LONG: Duration = Duration::from_secs(60);

    fn served(limit: Duration) -> Served {
        let run = tempfile::tempdir().unwrap();
        let folder = ControlFolder::in_run_folder(run.path());
        let (sender, commands) = channel();
        let server = ControlServer::start_with(limit, &folder, NAME, move |command| {
            sender.send(command).unwrap();
            match command {
                Command::Set(_) => Outcome::Changed(Changed::default()),
                Command::Switch => Outcome::Switching,
                Command::Cancel => Outcome::refused(RefusalReason::TooLate, "too late"),
            }
        });
        Served {
            _run: run,
            folder,
            server: Some(server.unwrap()),
            commands,
        }
    }

    impl Served {
        fn send(&self, command: Command) -> Result<Outcome, SendError> {
            send(&self.folder, NAME, command, LONG)
        }

        fn connect(&self) -> UnixStream {
            let stream = UnixStream::connect(self.folder.socket(NAME)).unwrap();
            stream.set_read_timeout(Some(LONG)).unwrap();
            stream
        }

        /// What is answered to these bytes.
        fn answer(&self, request: &[u8]) -> Outcome {
            let mut stream = self.connect();
            // The server may have closed the connection before all was written.
            let _ = stream.write_all(request);
            let mut answer = String::new();
            BufReader::new(stream).read_line(&mut answer).unwrap();
            let answer: Answer = serde_json::from_str(&answer).unwrap();
            answer.outcome
        }

        fn refusal(&self, request: &[u8]) -> RefusalReason {
            match self.answer(request) {
                Outcome::Refused(refusal) => refusal.reason,
                other => panic!("{other:?}"),
            }
        }
    }

    #[test]
    fn requests_reach_the_handler_and_are_answered() {
        let mut served = served(LONG);
        let set = Command::Set(Set {
            bandwidth: Some(None),
            max_downtime_ms: Some(20),
        });
        let changed = Outcome::Changed(Changed::default());
        assert_eq!(served.send(set).unwrap(), changed);
        assert_eq!(served.send(Command::Switch).unwrap(), Outcome::Switching);
        let refused = served.send(Command::Cancel).unwrap();
        assert_eq!(
            refused,
            Outcome::refused(RefusalReason::TooLate, "too late")
        );
        let commands: Vec<_> = served.commands.try_iter().collect();
        assert_eq!(commands, [set, Command::Switch, Command::Cancel]);
        drop(served.server.take());
        let gone = served.send(Command::Switch).unwrap_err();
        assert!(gone.has_ended(), "{gone}");
        let left = std::fs::read_dir(served.folder.path()).unwrap().count();
        assert_eq!(left, 0, "the socket and the key are removed");
    }

    #[test]
    fn only_who_has_the_key_is_obeyed() {
        let served = served(LONG);
        let permissions = std::fs::metadata(served.folder.socket(NAME)).unwrap();
        assert_eq!(permissions.permissions().mode() & 0o777, 0o600);
        let other = br#"{"version":1,"key":"0011","command":"cancel"}"#;
        let request = [&other[..], b"\n"].concat();
        assert_eq!(served.refusal(&request), RefusalReason::NotPermitted);
        assert!(served.commands.try_recv().is_err());
    }

    #[test]
    fn bad_requests_are_refused_and_reach_no_handler() {
        let served = served(LONG);
        for bad in [&b"\n"[..], b"{}\n", b"\xff\xfe\n", b"{\"version\":1}\n{}\n"] {
            assert_eq!(served.refusal(bad), RefusalReason::Malformed);
        }
        assert_eq!(served.refusal(b"{\"version\":7}\n"), RefusalReason::Version);
        for length in [MAX_LINE, 1 << 20] {
            let long = vec![b' '; length];
            assert_eq!(served.refusal(&long), RefusalReason::Malformed);
        }
        assert!(served.commands.try_recv().is_err());
    }

    #[test]
    fn silent_clients_and_those_that_leave_disturb_no_other_one() {
        let served = served(LONG);
        // As many as have a place at once, except one.
        let silent: Vec<_> = (1..CLIENTS).map(|_| served.connect()).collect();
        for half in &silent {
            (&*half).write_all(b"{\"version\":1,").unwrap();
        }
        drop(served.connect());
        assert_eq!(served.send(Command::Switch).unwrap(), Outcome::Switching);
    }

    /// The connection of a silent client is closed without an answer, and its place is free.
    #[test]
    fn a_client_without_a_place_waits_for_one() {
        let served = served(Duration::from_secs(2));
        let silent: Vec<_> = (0..CLIENTS).map(|_| served.connect()).collect();
        assert_eq!(served.send(Command::Switch).unwrap(), Outcome::Switching);
        for mut stream in silent {
            let mut answer = Vec::new();
            let _ = stream.read_to_end(&mut answer);
            assert_eq!(answer, b"");
        }
    }

    #[test]
    fn the_end_does_not_wait_for_clients() {
        // A server that waited for its clients would not end.
        let mut served = served(Duration::from_secs(24 * 60 * 60));
        let mut accepted = served.connect();
        // The clients are accepted in their order.
        assert_eq!(served.send(Command::Switch).unwrap(), Outcome::Switching);
        drop(served.server.take());
        match accepted.read(&mut [0]) {
            Ok(0) => {}
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {}
            other => panic!("the connection was not closed: {other:?}"),
        }
    }
}
