//! A relay between the two engines: passes all messages on, up to a chosen breakpoint. It cannot
//! read encrypted links and has no breakpoints in them.

mod breakpoint;
mod message;
mod sent_pages;
mod socket;

pub use breakpoint::{Breakpoint, When};
pub use message::MessageKind;
pub use sent_pages::SentPages;

use crate::unique_address;
use hikkoshi_wire::{CHALLENGE_LEN, Frame, HEADER_LEN, HELLO_LEN, Hello, Limits, Role};
use message::{from_destination, from_source, of_disk};
use socket::Socket;
use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// What the relay does at its breakpoint.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum RelayAction {
    /// Closes every link, and accepts no new ones.
    Cut,
    /// Closes every link, and accepts new ones.
    Reset,
    /// Holds further messages of that direction on that link, and the closing of all links, until
    /// [`Relay::release`]. After a message it also holds the other direction of that link, and the
    /// pages of all links: an answer, or the last pages, would continue the migration before the
    /// test has injected its fault.
    Hold,
}

/// A relay: the source connects to it, and it connects to the destination.
#[derive(Debug)]
pub struct Relay {
    shared: Arc<Shared>,
    address: String,
    socket: Option<PathBuf>,
}

#[derive(Debug)]
struct Shared {
    destination: String,
    /// The links are encrypted.
    encrypted: bool,
    breakpoint: Option<(Breakpoint, RelayAction)>,
    delay: Option<(MessageKind, Duration)>,
    state: Mutex<State>,
    changed: Condvar,
    sent: SentPages,
}

#[derive(Debug, Default)]
struct State {
    seen: HashMap<MessageKind, u32>,
    reached: bool,
    holding: bool,
    /// The link on which both directions are held; pages are held on all links.
    held: Option<u32>,
    released: bool,
    cut: bool,
    /// How often all links were closed to be replaced.
    resets: u32,
    /// Number of links accepted so far.
    links: u32,
    sockets: Vec<Socket>,
}

/// A link.
#[derive(Clone, Copy, Debug)]
struct Link {
    number: u32,
    /// Resets before it was accepted.
    since: u32,
}

enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl Relay {
    /// Listens at a unix socket (`at`) or at a unique TCP address, and connects links to
    /// `destination`, an address in `hikkoshi`'s format. Delays each message of the kind in
    /// `delay`. Encrypted links (`encrypted`) can have neither a breakpoint nor a delay.
    ///
    /// # Panics
    /// When it cannot listen, or `encrypted` is combined with a breakpoint or a delay.
    pub fn start(
        at: Option<&Path>,
        destination: &str,
        encrypted: bool,
        breakpoint: Option<(Breakpoint, RelayAction)>,
        delay: Option<(MessageKind, Duration)>,
    ) -> Self {
        assert!(!encrypted || breakpoint.is_none() && delay.is_none());
        let (listener, address) = match at {
            Some(path) => (
                Listener::Unix(UnixListener::bind(path).unwrap()),
                format!("unix:{}", path.display()),
            ),
            None => {
                let listener = TcpListener::bind(unique_address()).unwrap();
                let address = listener.local_addr().unwrap().to_string();
                (Listener::Tcp(listener), address)
            }
        };
        let shared = Arc::new(Shared {
            destination: destination.to_owned(),
            encrypted,
            breakpoint,
            delay,
            state: Mutex::default(),
            changed: Condvar::new(),
            sent: SentPages::default(),
        });
        let serving = Arc::clone(&shared);
        std::thread::spawn(move || serving.serve(&listener));
        Self {
            shared,
            address,
            socket: at.map(Path::to_owned),
        }
    }

    /// The address that the source connects to.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Waits for the breakpoint; returns whether it was reached.
    pub(crate) fn wait_reached(&self, limit: Duration) -> bool {
        let deadline = Instant::now() + limit;
        let mut state = self.shared.lock();
        while !state.reached {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            state = self
                .shared
                .changed
                .wait_timeout(state, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
        true
    }

    /// Whether the breakpoint was reached.
    pub(crate) fn reached(&self) -> bool {
        self.shared.lock().reached
    }

    /// Number of messages of that kind so far.
    pub fn seen(&self, kind: MessageKind) -> u32 {
        self.shared.lock().seen.get(&kind).copied().unwrap_or(0)
    }

    /// The guest's memory that has passed, also after the relay has ended.
    pub fn sent_pages(&self) -> SentPages {
        self.shared.sent.clone()
    }

    /// Holds pages from now on, whatever the breakpoint. Other messages pass.
    pub fn hold_pages(&self) {
        let mut state = self.shared.lock();
        state.holding = true;
        // No link has this number, so none is held in both directions.
        state.held = Some(u32::MAX);
    }

    /// Releases held messages.
    pub fn release(&self) {
        self.shared.lock().released = true;
        self.shared.changed.notify_all();
    }

    /// Closes every link, and accepts no new ones.
    pub fn cut(&self) {
        self.shared.cut();
    }

    /// Closes every link; accepts new ones.
    pub fn reset_links(&self) {
        self.shared.reset_links();
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.shared.cut();
        // Wakes the accepting thread, which then exits.
        match &self.socket {
            Some(path) => drop(UnixStream::connect(path)),
            None => drop(TcpStream::connect(&self.address)),
        }
    }
}

impl State {
    fn cut(&mut self) {
        self.cut = true;
        // Shut down, not closed, so that data passed on before still arrives.
        for end in &self.sockets {
            end.shutdown(Shutdown::Both);
        }
    }

    fn reset_links(&mut self) {
        self.resets += 1;
        // Held messages are dropped.
        self.holding = false;
        for end in self.sockets.drain(..) {
            end.shutdown(Shutdown::Both);
        }
    }

    fn is_holding(&self) -> bool {
        self.holding && !self.released && !self.cut
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn cut(&self) {
        self.lock().cut();
        self.changed.notify_all();
    }

    fn reset_links(&self) {
        self.lock().reset_links();
        self.changed.notify_all();
    }

    fn serve(self: &Arc<Self>, listener: &Listener) {
        loop {
            let source = match listener {
                Listener::Tcp(tcp) => tcp.accept().map(|(stream, _)| Socket::Tcp(stream)),
                Listener::Unix(unix) => unix.accept().map(|(stream, _)| Socket::Unix(stream)),
            };
            let Ok(source) = source else { return };
            if self.lock().cut {
                return;
            }
            // Without a destination the link is closed; the destination may return.
            if self.join(source).is_err() && self.lock().resets == 0 {
                self.cut();
            }
        }
    }

    /// Passes the bytes of one link on, in both directions.
    fn join(self: &Arc<Self>, source: Socket) -> io::Result<()> {
        let destination = Socket::connect(&self.destination)?;
        let mut state = self.lock();
        state.sockets.push(source.try_clone()?);
        state.sockets.push(destination.try_clone()?);
        state.links += 1;
        let link = Link {
            number: state.links,
            since: state.resets,
        };
        drop(state);
        let back = (destination.try_clone()?, source.try_clone()?);
        for (from, to, to_destination) in [(source, destination, true), (back.0, back.1, false)] {
            let shared = Arc::clone(self);
            std::thread::spawn(move || {
                // Both engines must handle a closed link.
                let over = shared.pass(&from, &to, to_destination, link);
                // The closing of a link is held, too: the last message of an engine must reach its
                // peer before the closing of its other links does.
                shared.wait_released();
                to.shutdown(Shutdown::Write);
                // When data cannot be passed on any more, it is refused. The other direction stays
                // open: it may carry the last message of an engine.
                if over.is_err_and(|error| error.kind() != io::ErrorKind::UnexpectedEof) {
                    from.refuse();
                }
            });
        }
        Ok(())
    }

    fn pass(
        &self,
        mut from: &Socket,
        mut to: &Socket,
        to_destination: bool,
        link: Link,
    ) -> io::Result<()> {
        if self.encrypted {
            return io::copy(&mut from, &mut to).map(drop);
        }
        let mut hello = [0; HELLO_LEN];
        from.read_exact(&mut hello)?;
        let role = Hello::decode(&hello).map_err(io::Error::other)?.role;
        let kind = match (to_destination, role) {
            (true, Role::Control) => MessageKind::HelloControl,
            (true, Role::Urgent) => MessageKind::HelloUrgent,
            (true, Role::Background { .. }) => MessageKind::HelloBackground,
            (true, Role::Frames) => MessageKind::HelloFrames,
            (true, Role::Disk { .. }) => MessageKind::HelloDisk,
            (false, _) => MessageKind::Greeting,
        };
        let mut challenge = [0; CHALLENGE_LEN];
        if to_destination {
            self.message(kind, to, &hello, link)?;
            from.read_exact(&mut challenge)?;
            to.write_all(&challenge)?;
        } else {
            from.read_exact(&mut challenge)?;
            self.message(kind, to, &[&hello[..], &challenge].concat(), link)?;
        }
        loop {
            let mut bytes = vec![0; HEADER_LEN];
            from.read_exact(&mut bytes)?;
            let header = bytes.first_chunk().unwrap();
            let limits = Limits { pages: u64::MAX };
            let frame = Frame::decode(header, &limits).map_err(io::Error::other)?;
            bytes.resize(HEADER_LEN + frame.payload_len(), 0);
            from.read_exact(&mut bytes[HEADER_LEN..])?;
            let kind = match frame {
                Frame::Pages { .. } | Frame::Compressed { .. } => MessageKind::Pages,
                Frame::Zeros { .. } => MessageKind::Zeros,
                Frame::Request { .. } => MessageKind::Request,
                Frame::Ack { .. } => MessageKind::Ack,
                Frame::Disk { .. } if to_destination => of_disk(&bytes[HEADER_LEN..]),
                Frame::Disk { .. } => MessageKind::DiskBytes,
                Frame::Control { .. } if to_destination => from_source(&bytes[HEADER_LEN..]),
                Frame::Control { .. } => from_destination(&bytes[HEADER_LEN..]),
            };
            if to_destination {
                self.sent.add(&frame, kind);
            }
            self.message(kind, to, &bytes, link)?;
        }
    }

    fn message(
        &self,
        kind: MessageKind,
        mut to: &Socket,
        bytes: &[u8],
        link: Link,
    ) -> io::Result<()> {
        let mut state = self.lock();
        let seen = state.seen.entry(kind).or_default();
        *seen += 1;
        let seen = *seen;
        drop(state);
        if let Some((_, duration)) = self.delay.filter(|&(delayed, _)| delayed == kind) {
            std::thread::sleep(duration);
        }
        let due = |when| {
            self.breakpoint
                .filter(|(m, _)| (m.when, m.kind, m.nth) == (when, kind, seen))
                .map(|(_, then)| then)
        };
        if let Some(then) = due(When::Before) {
            self.act(self.lock(), then, None)?;
        }
        let mut state = self.lock();
        let has_pages = matches!(kind, MessageKind::Pages | MessageKind::Zeros);
        while state.is_holding()
            && (state.held == Some(link.number) || state.held.is_some() && has_pages)
        {
            state = self.wait(state);
        }
        if state.cut || state.resets != link.since {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let Some(then) = due(When::After) else {
            drop(state);
            return to.write_all(bytes);
        };
        // While holding the lock: otherwise the receiver's answer could pass before this thread
        // runs again.
        to.write_all(bytes)?;
        self.act(state, then, Some(link.number))
    }

    /// Performs the action, then wakes the other threads. A hold after a message of the link `held`
    /// also holds both of its directions, and the pages of all links.
    fn act(
        &self,
        mut state: MutexGuard<'_, State>,
        then: RelayAction,
        held: Option<u32>,
    ) -> io::Result<()> {
        state.reached = true;
        match then {
            RelayAction::Cut => state.cut(),
            RelayAction::Reset => state.reset_links(),
            RelayAction::Hold => {
                state.holding = true;
                state.held = held;
            }
        }
        drop(state);
        self.changed.notify_all();
        if then != RelayAction::Hold {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        self.wait_released();
        Ok(())
    }

    /// Waits until held messages are released.
    fn wait_released(&self) {
        let mut state = self.lock();
        while state.is_holding() {
            state = self.wait(state);
        }
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.changed
            .wait(state)
            .unwrap_or_else(PoisonError::into_inner)
    }
}
