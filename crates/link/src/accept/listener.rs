//! The destination's listener: accepts connections, completes their handshake and passes them on.

use std::io;
use std::net::{IpAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{SyncSender, TrySendError};
use std::sync::{Arc, Mutex};
use std::thread;

use error_reporter::Report;
use hikkoshi_wire::MigrationId;
use rustix::event::{PollFd, PollFlags, Timespec};

use crate::TICK;
use crate::accept::handed;
use crate::accept::pending::{PendingHandshakes, PendingSlot};
use crate::accept::wait_limit::{WaitEnded, WaitLimit};
use crate::link_handshake;
use crate::tls::TlsServer;
use crate::{AcceptedLink, Address, Stream};
use hikkoshi_linux::CancelFlag;
use hikkoshi_linux::connect_unix;
use hikkoshi_linux::sandbox_thread;
use hikkoshi_linux::{Priority, PriorityClass};

#[derive(Debug)]
enum Socket {
    Tcp(TcpListener),
    Unix(UnixListener, PathBuf),
}

/// A bound listener. Dropping it removes its unix socket's file.
#[derive(Debug)]
pub struct Listener {
    socket: Socket,
    address: Address,
    /// The migration under way; only links with its id are accepted.
    current: Arc<Mutex<Option<MigrationId>>>,
    /// Connections whose handshake is not complete.
    pending: PendingHandshakes,
    /// How connections are protected; `None`: not at all.
    tls: Option<TlsServer>,
    /// How to lower the priority of the handshake threads.
    priority: Priority,
    /// When to stop waiting for a source.
    wait_limit: WaitLimit,
}

impl Listener {
    /// Binds `address`.
    ///
    /// # Errors
    /// The error of `bind`. A unix socket's path that exists counts as in use, unless it is a
    /// socket that a killed process left.
    pub fn bind(address: &Address) -> io::Result<Self> {
        let socket = match address {
            Address::Tcp(_) => {
                let found = address.resolve().map_err(io::Error::other)?;
                let listener = TcpListener::bind(&found[..])?;
                listener.set_nonblocking(true)?;
                Socket::Tcp(listener)
            }
            Address::Unix(path) => {
                let listener = match UnixListener::bind(path) {
                    Err(error)
                        if error.kind() == io::ErrorKind::AddrInUse && has_no_listener(path) =>
                    {
                        std::fs::remove_file(path)?;
                        UnixListener::bind(path)?
                    }
                    bound => bound?,
                };
                listener.set_nonblocking(true)?;
                Socket::Unix(listener, path.clone())
            }
        };
        // The bound address: port 0 is replaced by the real port.
        let address = match &socket {
            Socket::Tcp(listener) => Address::Tcp(listener.local_addr()?.to_string()),
            Socket::Unix(..) => address.clone(),
        };
        Ok(Self {
            socket,
            address,
            current: Arc::default(),
            pending: PendingHandshakes::default(),
            tls: None,
            priority: Priority::default(),
            wait_limit: WaitLimit::default(),
        })
    }

    /// Requires TLS on all later connections, as `server` is configured.
    #[must_use]
    pub fn with_tls(mut self, server: TlsServer) -> Self {
        self.tls = Some(server);
        self
    }

    /// Sets how the handshake threads lower their priority. They handle peers that are not
    /// authenticated yet.
    #[must_use]
    pub fn with_priority(mut self, priority: Priority) -> Self {
        self.priority = priority;
        self
    }

    /// Sets when to stop waiting for the first source.
    #[must_use]
    pub fn with_wait_limit(mut self, wait_limit: WaitLimit) -> Self {
        self.wait_limit = wait_limit;
        self
    }

    /// Whether to stop waiting for a source, and why.
    pub fn wait_ended(&self) -> Option<WaitEnded> {
        self.wait_limit.ended()
    }

    /// The bound address.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Accepts from now on only links of the migration that `control` began. With invitations, it
    /// accepts only the same source. If there are too many connections, the source's address is
    /// preferred.
    pub fn accept_only_links_of(&self, control: &AcceptedLink) {
        if let (Some(server), Some(source)) = (&self.tls, control.source) {
            server.accept_only(Some(source));
        }
        self.set_migration(Some(control.id));
        self.pending.set_source_addresses(control.from);
    }

    /// Accepts from now on only links of migration `id`; `None`: a control link with any id, from
    /// any invited source.
    pub fn set_migration(&self, id: Option<MigrationId>) {
        if let (Some(server), None) = (&self.tls, id) {
            server.accept_only(None);
        }
        if let Ok(mut current) = self.current.lock() {
            *current = id;
        }
        self.pending.set_source_addresses(None);
    }

    /// Accepts connections and sends them to `incoming` until `stop` is set. When that channel is
    /// full, a connection is rejected: the channel should hold all links of a migration.
    ///
    /// # Errors
    /// When `poll` fails.
    pub fn serve(&self, incoming: &SyncSender<AcceptedLink>, stop: &CancelFlag) -> io::Result<()> {
        let tick = Timespec::try_from(TICK).map_err(io::Error::other)?;
        while !stop.is_cancelled() {
            let mut poll = [PollFd::from_borrowed_fd(self.as_fd(), PollFlags::IN)];
            match rustix::event::poll(&mut poll, Some(&tick)) {
                Ok(0) | Err(rustix::io::Errno::INTR) => continue,
                Ok(_) => {}
                Err(error) => return Err(error.into()),
            }
            if let Err(error) = self.start_handshake(incoming, stop) {
                // The connection was closed before it was accepted, or no file descriptors are
                // left. Neither ends the listener.
                tracing::warn!(error = %Report::new(&error), "accepting a connection");
                thread::sleep(TICK);
            }
        }
        Ok(())
    }

    /// Accepts a connection and starts a thread for its handshake.
    fn start_handshake(
        &self,
        incoming: &SyncSender<AcceptedLink>,
        stop: &CancelFlag,
    ) -> io::Result<()> {
        let (stream, peer, from) = self.accept()?;
        let Some(slot) = self.pending.add(&stream, from, stop)? else {
            return Ok(());
        };
        let (current, tls) = (Arc::clone(&self.current), self.tls.clone());
        let (incoming, stop) = (incoming.clone(), stop.clone());
        let (pending, priority) = (self.pending.clone(), self.priority);
        thread::Builder::new()
            .name("dst-hello".into())
            .spawn(move || {
                // The guest does not wait for an unknown peer.
                priority.apply(PriorityClass::Background);
                sandbox_thread();
                let (stream, peer, from) = match handed_over(stream, peer, from, &slot, &stop) {
                    Ok(connection) => connection,
                    Err((peer, error)) => {
                        pending.log_rejection(&peer, &Report::new(&error));
                        return;
                    }
                };
                let new = match link_handshake::answer(stream, peer, tls.as_ref(), &current, &stop)
                {
                    Ok(new) => AcceptedLink { from, ..new },
                    Err((peer, error)) => {
                        pending.log_rejection(&peer, &Report::new(&error));
                        return;
                    }
                };
                // A migration may have begun during this handshake.
                let current = current.lock().map_or(None, |current| *current);
                match current {
                    // The source of the migration under way, possibly from another address: an
                    // engine that was restarted gets the source's address here.
                    Some(id) if id == new.id => pending.set_source_addresses(new.from),
                    None => {}
                    Some(_) => {
                        pending.log_rejection(&new.peer, &"another migration has begun");
                        return;
                    }
                }
                // This thread does not wait: a migration does not have more links than the channel
                // holds.
                if let Err(TrySendError::Full(more)) = incoming.try_send(new) {
                    pending.log_rejection(&more.peer, &"the migration has too many links");
                }
            })
            .map(drop)
    }

    fn accept(&self) -> io::Result<(Stream, String, Option<IpAddr>)> {
        match &self.socket {
            Socket::Tcp(listener) => {
                let (stream, peer) = listener.accept()?;
                Ok((Stream::tcp(stream)?, peer.to_string(), Some(peer.ip())))
            }
            Socket::Unix(listener, path) => {
                let (stream, _) = listener.accept()?;
                let peer = format!("unix:{}", path.display());
                Ok((Stream::Unix(stream), peer, None))
            }
        }
    }
}

/// The connection that a front passes on by this one, or this one. From now on `slot` is of it.
fn handed_over(
    stream: Stream,
    peer: String,
    from: Option<IpAddr>,
    slot: &PendingSlot,
    stop: &CancelFlag,
) -> Result<(Stream, String, Option<IpAddr>), (String, io::Error)> {
    let Stream::Unix(carrier) = &stream else {
        return Ok((stream, peer, from));
    };
    let passed = stream
        .set_timeout(Some(TICK))
        .and_then(|()| handed::receive(carrier, link_handshake::limits(stop)))
        .and_then(|passed| {
            let Some(passed) = passed else {
                slot.identify(&stream, None)?;
                return Ok(None);
            };
            let source = passed.peer_addr()?;
            let passed = Stream::tcp(passed)?;
            slot.identify(&passed, Some(source.ip()))?;
            Ok(Some((passed, source)))
        });
    match passed {
        Ok(None) => Ok((stream, peer, from)),
        Ok(Some((stream, source))) => Ok((stream, source.to_string(), Some(source.ip()))),
        Err(error) => Err((peer, error)),
    }
}

/// Whether `path` is a socket without a listener.
fn has_no_listener(path: &Path) -> bool {
    let is_socket = std::fs::symlink_metadata(path).is_ok_and(|m| m.file_type().is_socket());
    let connected = is_socket.then(|| connect_unix(path));
    matches!(connected, Some(Err(error)) if error.kind() == io::ErrorKind::ConnectionRefused)
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.socket {
            Socket::Tcp(listener) => listener.as_fd(),
            Socket::Unix(listener, _) => listener.as_fd(),
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Socket::Unix(_, path) = &self.socket {
            // It may be removed already.
            let _ = std::fs::remove_file(path);
        }
    }
}

#[cfg(test)]
#[cfg(not(loom))]
#[path = "listener_tests.rs"]
mod tests;
