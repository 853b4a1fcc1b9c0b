//! The threads of a session.

use std::io::{self, Write};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

use virt::domain::Domain;

use super::command;
use super::events::Subscription;
use super::qmp::{self, Request};
use super::received::Received;
use crate::connection::Connection;

/// Lines that wait to be written: answers, of which there is one at a time, and events.
const LINES: usize = 1024;

/// Serves a session on one end of a pair of sockets, and returns the other end.
///
/// # Errors
///
/// Why the session cannot be served, as text.
pub(crate) fn start(connection: &Connection, domain: &Domain) -> Result<UnixStream, String> {
    let text = |error: io::Error| error.to_string();
    let (client, server) = UnixStream::pair().map_err(text)?;
    let (lines, to_write) = sync_channel(LINES);
    // Before the greeting, so that no event of the session is missed.
    let events = Subscription::new(connection, domain, lines.clone())?;
    let version = command::execute(domain, r#"{"execute":"query-version"}"#, &[])?;
    let greeting = qmp::greeting(&version).ok_or("QEMU did not tell its version")?;
    let write_end = server.try_clone().map_err(text)?;
    thread::Builder::new()
        .name("libvirt-answers".to_owned())
        .spawn(move || write(&greeting, &to_write, write_end))
        .map_err(text)?;
    let (connection, domain) = (connection.clone(), domain.clone());
    thread::Builder::new()
        .name("libvirt-commands".to_owned())
        .spawn(move || {
            serve(&connection, &domain, &server, &lines);
            // The last senders: the other thread ends, and closes the socket.
            drop((events, lines));
        })
        .map_err(text)?;
    Ok(client)
}

/// Executes commands until the client closes the socket, or the daemon is gone.
fn serve(
    connection: &Connection,
    domain: &Domain,
    socket: &UnixStream,
    lines: &SyncSender<String>,
) {
    let mut received = Received::default();
    loop {
        let (line, descriptors) = match received.next(socket) {
            Ok(Some(next)) => next,
            Ok(None) => return,
            Err(error) => {
                tracing::warn!(%error, "reading a domain's monitor session");
                return;
            }
        };
        let answer = match qmp::request(&line) {
            None => {
                tracing::warn!("a domain's monitor session sent a line that is not a command");
                return;
            }
            Some(Request::Capabilities { id }) => qmp::empty_answer(id),
            Some(Request::Command { id, json }) => {
                match command::execute(domain, &json, &descriptors) {
                    Ok(returned) => qmp::answer(id, &returned),
                    Err(error) if !connection.is_alive() => {
                        tracing::warn!(error, "a domain's monitor: libvirt's daemon is gone");
                        return;
                    }
                    Err(error) => qmp::error(id, &format!("libvirt: {error}")),
                }
            }
        };
        if lines.send(answer).is_err() {
            return;
        }
    }
}

/// Writes lines until there is nobody who sends them, or reads them.
fn write(greeting: &str, lines: &Receiver<String>, mut socket: UnixStream) {
    let mut written = socket.write_all(greeting.as_bytes());
    while written.is_ok() {
        match lines.recv() {
            Ok(line) => written = socket.write_all(line.as_bytes()),
            Err(_) => break,
        }
    }
    // The client has to notice that no more answers come.
    let _ = socket.shutdown(std::net::Shutdown::Both);
}
