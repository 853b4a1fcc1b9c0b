//! The destination's door: accepts connections and lets in those that say a
//! proper hello.

use std::io;
use std::net::{IpAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{SyncSender, TrySendError};
use std::sync::{Arc, Mutex};
use std::thread;

use hikkoshi_wire::{Capabilities, MigrationId, Role};
use rustix::event::{PollFd, PollFlags, Timespec};

use super::pending::PendingHandshakes;
use super::wait_limit::{WaitEnded, WaitLimit};
use crate::TICK;
use crate::connect::handshake;
use crate::tls::{Fingerprint, TlsServer};
use crate::{Address, Stream};
use hikkoshi_linux::Cancel;
use hikkoshi_linux::sandbox_thread;
use hikkoshi_linux::{Priority, PriorityClass};

/// A connection that has said a proper hello and was answered.
#[derive(Debug)]
pub struct Incoming {
    /// What it is for.
    pub role: Role,
    /// Which migration it belongs to.
    pub id: MigrationId,
    /// What both sides understand beyond the protocol's version.
    pub capabilities: Capabilities,
    /// The connection.
    pub stream: Stream,
    /// Where it comes from, for messages.
    pub peer: String,
    /// The address that it comes from; none on a unix socket.
    pub from: Option<IpAddr>,
    /// The source's key, where it was let in for that.
    pub source: Option<Fingerprint>,
}

#[derive(Debug)]
enum Socket {
    Tcp(TcpListener),
    Unix(UnixListener, PathBuf),
}

/// A bound listener. Its unix socket's file is removed with it.
#[derive(Debug)]
pub struct Listener {
    socket: Socket,
    address: Address,
    /// The migration under way; only links that know its id are let in.
    current: Arc<Mutex<Option<MigrationId>>>,
    /// Those who have not said hello yet.
    pending: PendingHandshakes,
    /// How connections are protected, if they are.
    tls: Option<TlsServer>,
    /// Whether those who listen to strangers stand back.
    priority: Priority,
    /// When to stop waiting for a source.
    waiting: WaitLimit,
}

impl Listener {
    /// Binds `address`.
    ///
    /// # Errors
    /// What `bind` says; a unix socket's path that exists is in use, unless it
    /// is a socket that a killed program left.
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
                    Err(error) if error.kind() == io::ErrorKind::AddrInUse && is_dead(path) => {
                        std::fs::remove_file(path)?;
                        UnixListener::bind(path)?
                    }
                    bound => bound?,
                };
                listener.set_nonblocking(true)?;
                Socket::Unix(listener, path.clone())
            }
        };
        // The address as bound: port 0 has become a number.
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
            waiting: WaitLimit::default(),
        })
    }

    /// From now on connections must speak TLS, as `server` demands.
    #[must_use]
    pub fn with_tls(mut self, server: TlsServer) -> Self {
        self.tls = Some(server);
        self
    }

    /// Whether the threads that listen to strangers stand back behind all others.
    #[must_use]
    pub fn with_priority(mut self, priority: Priority) -> Self {
        self.priority = priority;
        self
    }

    /// When to stop waiting for a source that has not come yet.
    #[must_use]
    pub fn with_waiting(mut self, waiting: WaitLimit) -> Self {
        self.waiting = waiting;
        self
    }

    /// Whether to stop waiting for a source, and why.
    pub fn wait_over(&self) -> Option<WaitEnded> {
        self.waiting.over()
    }

    /// Where it listens.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// From now on only links of the migration that `control` has begun are let
    /// in; where sources are invited, only from the same source. Its address comes
    /// first when there are too many connections.
    pub fn admit(&self, control: &Incoming) {
        if let (Some(server), Some(source)) = (&self.tls, control.source) {
            server.bind(Some(source));
        }
        self.expect(Some(control.id));
        self.pending.prefer(control.from);
    }

    /// From now on only links of migration `id` are let in; `None`: a control
    /// link with any id, of whoever was invited.
    pub fn expect(&self, id: Option<MigrationId>) {
        if let (Some(server), None) = (&self.tls, id) {
            server.bind(None);
        }
        if let Ok(mut current) = self.current.lock() {
            *current = id;
        }
        self.pending.prefer(None);
    }

    /// Accepts connections and hands them to `incoming` until `stop` is set. What
    /// finds it full is turned away: it should hold all links of a migration.
    ///
    /// # Errors
    /// When accepting fails for good.
    pub fn serve(&self, incoming: &SyncSender<Incoming>, stop: &Cancel) -> io::Result<()> {
        let tick = Timespec::try_from(TICK).map_err(io::Error::other)?;
        while !stop.is_cancelled() {
            let mut poll = [PollFd::from_borrowed_fd(self.as_fd(), PollFlags::IN)];
            match rustix::event::poll(&mut poll, Some(&tick)) {
                Ok(0) | Err(rustix::io::Errno::INTR) => continue,
                Ok(_) => {}
                Err(error) => return Err(error.into()),
            }
            if let Err(error) = self.welcome(incoming, stop) {
                // A connection that was gone before it was accepted, or no
                // descriptors left: neither ends the listening.
                tracing::warn!(%error, "accepting a connection");
                thread::sleep(TICK);
            }
        }
        Ok(())
    }

    /// Accepts a connection and begins to listen to it.
    fn welcome(&self, incoming: &SyncSender<Incoming>, stop: &Cancel) -> io::Result<()> {
        let (stream, peer, from) = self.accept()?;
        let Some(place) = self.pending.enter(&stream, from, stop)? else {
            return Ok(());
        };
        let (current, tls) = (Arc::clone(&self.current), self.tls.clone());
        let (incoming, stop) = (incoming.clone(), stop.clone());
        let (pending, priority) = (self.pending.clone(), self.priority);
        thread::Builder::new()
            .name("dst-hello".into())
            .spawn(move || {
                let _place = place;
                // Whoever it is, it is not the one that the guest waits for yet.
                priority.apply(PriorityClass::Background);
                sandbox_thread();
                let new = match handshake::answer(stream, peer, tls.as_ref(), &current, &stop) {
                    Ok(new) => Incoming { from, ..new },
                    Err((peer, error)) => {
                        pending.turned_away(&peer, &error);
                        return;
                    }
                };
                // What is under way may have begun while this one was heard.
                let current = current.lock().map_or(None, |current| *current);
                match current {
                    // It belongs, wherever it was before: an engine that was
                    // started again, say, learns its source's address here.
                    Some(id) if id == new.id => pending.prefer(new.from),
                    None => {}
                    Some(_) => {
                        pending.turned_away(&new.peer, &"another was faster");
                        return;
                    }
                }
                // Nobody waits here: more links than a migration has are no
                // migration's.
                if let Err(TrySendError::Full(more)) = incoming.try_send(new) {
                    pending.turned_away(&more.peer, &"too many links");
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

/// Whether there is a socket at `path` that nobody listens at any more.
fn is_dead(path: &Path) -> bool {
    let is_socket = std::fs::symlink_metadata(path).is_ok_and(|m| m.file_type().is_socket());
    let connected = is_socket.then(|| UnixStream::connect(path));
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
            // Somebody may have removed it already.
            let _ = std::fs::remove_file(path);
        }
    }
}
