//! The destination's door: accepts connections and lets in those that say a
//! proper hello.

use std::io;
use std::net::TcpListener;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{SyncSender, TrySendError};
use std::sync::{Arc, Mutex};
use std::thread;

use hikkoshi_wire::{Capabilities, MigrationId, Role};
use rustix::event::{PollFd, PollFlags, Timespec};

use super::framed::TICK;
use super::{Address, Stream, handshake};
use crate::cancel::Cancel;

/// Connections that may be in the middle of their hello at once. More are
/// turned away: whoever opens a thousand connections gets nowhere.
const HELLOS: usize = 16;

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
}

impl Listener {
    /// Binds `address`.
    ///
    /// # Errors
    /// What `bind` says; a unix socket's path that exists is in use.
    pub fn bind(address: &Address) -> io::Result<Self> {
        let socket = match address {
            Address::Tcp(_) => {
                let found = address.resolve().map_err(io::Error::other)?;
                let listener = TcpListener::bind(&found[..])?;
                listener.set_nonblocking(true)?;
                Socket::Tcp(listener)
            }
            Address::Unix(path) => {
                let listener = UnixListener::bind(path)?;
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
        })
    }

    /// Where it listens.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// From now on only links of migration `id` are let in; `None`: a control
    /// link with any id.
    pub fn expect(&self, id: Option<MigrationId>) {
        if let Ok(mut current) = self.current.lock() {
            *current = id;
        }
    }

    /// Accepts connections and hands them to `incoming` until `stop` is set. What
    /// finds it full is turned away: it should hold all links of a migration.
    ///
    /// # Errors
    /// When accepting fails for good.
    pub fn serve(&self, incoming: &SyncSender<Incoming>, stop: &Cancel) -> io::Result<()> {
        let hellos = Arc::new(AtomicUsize::new(0));
        let tick = Timespec::try_from(TICK).map_err(io::Error::other)?;
        while !stop.is_cancelled() {
            let mut poll = [PollFd::from_borrowed_fd(self.as_fd(), PollFlags::IN)];
            match rustix::event::poll(&mut poll, Some(&tick)) {
                Ok(0) | Err(rustix::io::Errno::INTR) => continue,
                Ok(_) => {}
                Err(error) => return Err(error.into()),
            }
            let (stream, peer) = match self.accept() {
                Ok(accepted) => accepted,
                Err(error) => {
                    // A connection that was gone before it was accepted, or
                    // no descriptors left: neither ends the listening.
                    tracing::warn!(%error, "accepting a connection");
                    thread::sleep(TICK);
                    continue;
                }
            };
            if hellos.fetch_add(1, Ordering::AcqRel) >= HELLOS {
                hellos.fetch_sub(1, Ordering::AcqRel);
                tracing::warn!(peer, "turned away: too many connections without a hello");
                continue;
            }
            let (done, current) = (Arc::clone(&hellos), Arc::clone(&self.current));
            let (incoming, stop) = (incoming.clone(), stop.clone());
            let spawned = thread::Builder::new()
                .name("dst-hello".into())
                .spawn(move || {
                    let answered = handshake::answer(stream, peer, &current, &stop);
                    done.fetch_sub(1, Ordering::AcqRel);
                    match answered {
                        Ok(new) => {
                            if let Err(TrySendError::Full(new)) = incoming.try_send(new) {
                                let (peer, role) = (new.peer, new.role);
                                tracing::warn!(peer, %role, "turned away: too many links");
                            }
                            // Or the receiver is gone: nobody waits any more.
                        }
                        Err((peer, error)) => tracing::warn!(peer, %error, "turned away"),
                    }
                });
            if let Err(error) = spawned {
                hellos.fetch_sub(1, Ordering::AcqRel);
                tracing::warn!(%error, "no thread for a connection");
            }
        }
        Ok(())
    }

    fn accept(&self) -> io::Result<(Stream, String)> {
        match &self.socket {
            Socket::Tcp(listener) => {
                let (stream, peer) = listener.accept()?;
                Ok((Stream::tcp(stream)?, peer.to_string()))
            }
            Socket::Unix(listener, path) => {
                let (stream, _) = listener.accept()?;
                Ok((Stream::Unix(stream), format!("unix:{}", path.display())))
            }
        }
    }
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
