//! Serves the recording of this process on a unix socket.
//!
//! One thread does everything: it adds a state, and then calls [`StatusServer::publish`]. A client
//! that reads slowly loses states; it never delays the thread or another client. One that leaves
//! too much unread is disconnected.

use std::io::{self, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use hikkoshi_linux::bind_unix;

use crate::folder::{FolderError, StatusFolder};
use crate::{Recorder, StatusRecord};

/// The most clients at once.
const CLIENTS: usize = 16;

/// How long a client may accept nothing.
const CLIENT_STALL_TIMEOUT: Duration = Duration::from_secs(30);

/// The most bytes that a client may leave unread beyond its first recording: notices.
const PENDING: usize = 4 << 20;

/// How long the last records may take, for all clients together.
const FINISH_TIMEOUT: Duration = Duration::from_secs(1);

/// A status socket, and its clients.
#[derive(Debug)]
pub struct StatusServer {
    listener: UnixListener,
    socket: PathBuf,
    clients: Vec<Client>,
}

/// The status socket cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// Its folder cannot be used.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// The socket itself.
    #[error("making the status socket {}", socket.display())]
    Socket {
        /// The socket.
        socket: PathBuf,
        /// The reason.
        #[source]
        cause: io::Error,
    },
}

/// A connected client, with what it has not accepted yet.
#[derive(Debug)]
struct Client {
    stream: UnixStream,
    pending: Vec<u8>,
    /// The most bytes that may be pending.
    most: usize,
    /// When it last accepted something, or had nothing to accept.
    accepted: Instant,
}

impl StatusServer {
    /// Makes the socket of the migration that `recorder` records.
    ///
    /// # Errors
    /// If the folder or the socket cannot be made.
    pub fn start(folder: &StatusFolder, recorder: &Recorder) -> Result<Self, ServeError> {
        folder.create()?;
        folder.remove_stale();
        let socket = folder.socket(&recorder.recording().migration);
        let listener = bind_unix(&socket)
            .and_then(|listener| {
                listener.set_nonblocking(true)?;
                Ok(listener)
            })
            .map_err(|cause| ServeError::Socket {
                socket: socket.clone(),
                cause,
            })?;
        Ok(Self {
            listener,
            socket,
            clients: Vec::new(),
        })
    }

    /// Sends a record to all clients. A state replaces nothing: a client that has not accepted the
    /// records before does not get it.
    pub fn publish(&mut self, record: &StatusRecord) {
        if self.clients.is_empty() {
            return;
        }
        let line = line(record);
        let is_state = matches!(record, StatusRecord::State(_));
        self.clients.retain_mut(|client| {
            if !is_state || client.pending.is_empty() {
                client.pending.extend_from_slice(&line);
            }
            client.send() && client.pending.len() <= client.most
        });
    }

    /// Accepts new clients, which get the recording so far, and sends what others had not accepted.
    pub fn accept(&mut self, recorder: &Recorder) {
        self.clients.retain_mut(Client::send);
        let mut recording = None;
        while let Ok((stream, _)) = self.listener.accept() {
            if self.clients.len() >= CLIENTS || stream.set_nonblocking(true).is_err() {
                continue;
            }
            let recording = recording.get_or_insert_with(|| {
                line(&StatusRecord::Recording(Box::new(
                    recorder.recording().clone(),
                )))
            });
            let mut client = Client {
                stream,
                pending: recording.clone(),
                most: recording.len() + PENDING,
                accepted: Instant::now(),
            };
            if client.send() {
                self.clients.push(client);
            }
        }
    }

    /// Bytes that the clients have not accepted yet.
    #[cfg(test)]
    pub(crate) fn pending(&self) -> usize {
        self.clients.iter().map(|client| client.pending.len()).sum()
    }

    /// Gives the clients a moment to accept the last records, and removes the socket.
    pub fn finish(mut self) {
        let deadline = Instant::now() + FINISH_TIMEOUT;
        loop {
            self.clients.retain_mut(Client::send);
            let done = self.clients.iter().all(|client| client.pending.is_empty());
            if done || Instant::now() >= deadline {
                return;
            }
            thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for StatusServer {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.socket);
    }
}

impl Client {
    /// Sends as much as it accepts now. Returns whether it is still there.
    fn send(&mut self) -> bool {
        let mut sent = 0;
        loop {
            let rest = self.pending.get(sent..).unwrap_or_default();
            if rest.is_empty() {
                break;
            }
            match self.stream.write(rest) {
                Ok(0) => return false,
                Ok(bytes) => sent += bytes,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(_) => return false,
            }
        }
        self.pending.drain(..sent);
        if sent > 0 || self.pending.is_empty() {
            self.accepted = Instant::now();
        }
        self.accepted.elapsed() < CLIENT_STALL_TIMEOUT
    }
}

/// A record as a line.
fn line(record: &StatusRecord) -> Vec<u8> {
    // The records have no maps with other keys than strings, the only way to fail.
    let mut line = serde_json::to_vec(record).unwrap_or_default();
    line.push(b'\n');
    line
}
