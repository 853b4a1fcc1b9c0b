//! Between the two engines: passes everything on, until a chosen moment. What is encrypted it cannot
//! read, and knows no moments in it.

mod breakpoint;
mod message;
mod socket;

pub use breakpoint::{Breakpoint, When};
pub use message::MessageKind;

use crate::unique_address;
use hikkoshi_wire::{CHALLENGE_LEN, Frame, HEADER_LEN, HELLO_LEN, Hello, Limits, Role};
use message::{from_destination, from_source};
use socket::Socket;
use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// What happens at the moment.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum RelayAction {
    /// Every link ends at once, and no new one comes about.
    Cut,
    /// Every link ends at once, and new ones come about.
    Reset,
    /// Nothing more goes that way on that link, and no link ends, until [`Relay::release`]. After a
    /// message nothing goes the other way on that link either: its answer would bring the
    /// migration on before the test has done what it is to do.
    Hold,
}

/// A relay: the source connects to it, it connects to the destination.
#[derive(Debug)]
pub struct Relay {
    shared: Arc<Shared>,
    address: String,
    socket: Option<PathBuf>,
}

#[derive(Debug)]
struct Shared {
    destination: String,
    /// Nobody but the engines can read what passes by.
    sealed: bool,
    breakpoint: Option<(Breakpoint, RelayAction)>,
    slow: Option<(MessageKind, Duration)>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    seen: HashMap<MessageKind, u32>,
    reached: bool,
    holding: bool,
    /// The link on which nothing goes either way as long as something is held.
    held: Option<u32>,
    released: bool,
    cut: bool,
    /// How often all links were ended for new ones.
    resets: u32,
    /// Links that have come about.
    links: u32,
    sockets: Vec<Socket>,
}

/// One of the links.
#[derive(Clone, Copy, Debug)]
struct Link {
    number: u32,
    /// Interruptions before it.
    since: u32,
}

enum Door {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl Relay {
    /// Listens at a unix socket (`at`) or at a TCP address of its own, and passes links on to
    /// `destination`, an address as `hikkoshi` takes it. Messages of the kind in `slow` take so
    /// much longer each, one after another. Links that are encrypted (`sealed`) have neither.
    ///
    /// # Panics
    /// When it cannot listen, or would have to look into what is sealed.
    pub fn start(
        at: Option<&Path>,
        destination: &str,
        sealed: bool,
        breakpoint: Option<(Breakpoint, RelayAction)>,
        slow: Option<(MessageKind, Duration)>,
    ) -> Self {
        assert!(!sealed || breakpoint.is_none() && slow.is_none());
        let (door, address) = match at {
            Some(path) => (
                Door::Unix(UnixListener::bind(path).unwrap()),
                format!("unix:{}", path.display()),
            ),
            None => {
                let listener = TcpListener::bind(unique_address()).unwrap();
                let address = listener.local_addr().unwrap().to_string();
                (Door::Tcp(listener), address)
            }
        };
        let shared = Arc::new(Shared {
            destination: destination.to_owned(),
            sealed,
            breakpoint,
            slow,
            state: Mutex::default(),
            changed: Condvar::new(),
        });
        let serving = Arc::clone(&shared);
        std::thread::spawn(move || serving.serve(&door));
        Self {
            shared,
            address,
            socket: at.map(Path::to_owned),
        }
    }

    /// Where the source connects to.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Waits for the moment; whether it came.
    pub fn wait_reached(&self, limit: Duration) -> bool {
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

    /// Whether the moment has come.
    pub fn reached(&self) -> bool {
        self.shared.lock().reached
    }

    /// How many messages of that kind have come by.
    pub fn seen(&self, kind: MessageKind) -> u32 {
        self.shared.lock().seen.get(&kind).copied().unwrap_or(0)
    }

    /// Ends the holding.
    pub fn release(&self) {
        self.shared.lock().released = true;
        self.shared.changed.notify_all();
    }

    /// Ends every link.
    pub fn cut(&self) {
        self.shared.cut();
    }

    /// Ends every link; new ones come about.
    pub fn reset_links(&self) {
        self.shared.reset_links();
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.shared.cut();
        // Wakes the door, which then sees that it is over.
        match &self.socket {
            Some(path) => drop(UnixStream::connect(path)),
            None => drop(TcpStream::connect(&self.address)),
        }
    }
}

impl State {
    fn cut(&mut self) {
        self.cut = true;
        // Shut down, not closed: what was passed on before still arrives.
        for end in &self.sockets {
            end.shutdown(Shutdown::Both);
        }
    }

    fn reset_links(&mut self) {
        self.resets += 1;
        // What was held goes nowhere any more.
        self.holding = false;
        for end in self.sockets.drain(..) {
            end.shutdown(Shutdown::Both);
        }
    }

    fn holds(&self) -> bool {
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

    fn serve(self: &Arc<Self>, door: &Door) {
        loop {
            let source = match door {
                Door::Tcp(listener) => listener.accept().map(|(stream, _)| Socket::Tcp(stream)),
                Door::Unix(listener) => listener.accept().map(|(stream, _)| Socket::Unix(stream)),
            };
            let Ok(source) = source else { return };
            if self.lock().cut {
                return;
            }
            // A destination that is not there ends the link, and may come back.
            if self.join(source).is_err() && self.lock().resets == 0 {
                self.cut();
            }
        }
    }

    /// Passes one link's bytes on, in both directions.
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
                // A link that ends is what both engines must cope with.
                let over = shared.pass(&from, &to, to_destination, link);
                // Nor does a link's end go on before what is held: what an engine says last, and
                // where, is known to its peer before the end of its other links.
                shared.wait_released();
                to.shutdown(Shutdown::Write);
                // One that cannot be passed on any more is not read any more either. It still gets
                // what comes the other way: an engine's last word may be on its way there.
                if over.is_err_and(|error| error.kind() != io::ErrorKind::UnexpectedEof) {
                    from.shutdown(Shutdown::Read);
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
        if self.sealed {
            return io::copy(&mut from, &mut to).map(drop);
        }
        let mut hello = [0; HELLO_LEN];
        from.read_exact(&mut hello)?;
        let role = Hello::decode(&hello).map_err(io::Error::other)?.role;
        let kind = match (to_destination, role) {
            (true, Role::Control) => MessageKind::HelloControl,
            (true, Role::Urgent) => MessageKind::HelloUrgent,
            (true, Role::Background { .. }) => MessageKind::HelloBackground,
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
                Frame::Pages { .. } => MessageKind::Pages,
                Frame::Zeros { .. } => MessageKind::Zeros,
                Frame::Request { .. } => MessageKind::Request,
                Frame::Ack { .. } => MessageKind::Ack,
                Frame::Control { .. } if to_destination => from_source(&bytes[HEADER_LEN..]),
                Frame::Control { .. } => from_destination(&bytes[HEADER_LEN..]),
            };
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
        if let Some((_, longer)) = self.slow.filter(|&(slow, _)| slow == kind) {
            std::thread::sleep(longer);
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
        while state.holds() && state.held == Some(link.number) {
            state = self.wait(state);
        }
        if state.cut || state.resets != link.since {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let Some(then) = due(When::After) else {
            drop(state);
            return to.write_all(bytes);
        };
        // In one go: whoever gets it may answer before this thread has its next turn, and that
        // answer would pass.
        to.write_all(bytes)?;
        self.act(state, then, Some(link.number))
    }

    /// Does it, and lets others do something only then. Nothing goes either way on the link
    /// `held`, if something is held.
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

    /// Waits for the end of the holding, if something is held.
    fn wait_released(&self) {
        let mut state = self.lock();
        while state.holds() {
            state = self.wait(state);
        }
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.changed
            .wait(state)
            .unwrap_or_else(PoisonError::into_inner)
    }
}
