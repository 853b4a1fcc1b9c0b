//! A relay between the two sides of a migration: it passes on what arrives at either end of each
//! connection, and can count, change, hold, delay and cut it.
//!
//! A [`RelayPolicy`] decides. It sees whole messages ([`Carries::Messages`]), or only bytes if the
//! links are encrypted ([`Carries::Bytes`]).

mod message;
mod outlet;
mod socket;
#[cfg(test)]
mod tests;

pub use message::{Message, Part, Passing, Towards};
pub use socket::{RelayListener, RelaySocket};

use std::fmt;
use std::io::{self, ErrorKind, Read};
use std::net::Shutdown;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use message::{Greeting, read_challenge};
use outlet::Outlet;

/// The most bytes that are passed on at once.
const BUFFER: usize = 256 << 10;

/// What a relay does with what is about to pass. A cut closes all links in both directions, and the
/// relay accepts new ones; an end is a cut after which it accepts none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// Passes it on.
    Pass,
    /// It never arrives, and no link breaks.
    Drop,
    /// Its own link breaks before it.
    CutLink,
    /// All links break before it.
    CutBefore,
    /// Half of it arrives, then all links break, as after `CutAfter`.
    CutInside,
    /// So many of its bytes arrive, then all links break.
    CutAt(usize),
    /// All links break after it: no answer to it passes.
    CutAfter,
    /// As `CutBefore`, and no new link is accepted.
    EndBefore,
    /// As `CutAfter`, and no new link is accepted.
    EndAfter,
}

/// Decides what a relay does. Each direction of each link has a thread of its own that calls these.
/// While a call waits, nothing follows in that direction of that link.
pub trait RelayPolicy: Send + Sync {
    /// Something is about to pass.
    fn before(&self, passing: &mut Passing<'_>) -> Fate {
        let _ = passing;
        Fate::Pass
    }

    /// It has passed, or what was decided instead has happened, or the receiver is gone.
    fn after(&self, passing: &Passing<'_>) {
        let _ = passing;
    }

    /// A direction of a link has ended, and that is about to be passed on.
    fn closing(&self) {}
}

/// Passes everything on.
#[derive(Debug)]
pub struct PassAll;

impl RelayPolicy for PassAll {}

/// What a relay reads of what it passes on.
#[derive(Clone, Copy, Debug)]
pub enum Carries {
    /// The messages of the protocol.
    Messages,
    /// Bytes, of whatever protocol, each of which arrives so much later.
    Bytes {
        /// The delay in each direction.
        delay: Duration,
    },
}

impl Carries {
    /// Bytes without a delay.
    pub const BYTES: Self = Self::Bytes {
        delay: Duration::ZERO,
    };
}

/// A relay that runs. It ends when it is dropped, and so do its links.
#[derive(Debug)]
pub struct Relay {
    shared: Arc<Shared>,
    address: String,
}

struct Shared {
    listener: RelayListener,
    carries: Carries,
    policy: Arc<dyn RelayPolicy>,
    links: Mutex<Links>,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared")
            .field("links", &self.links)
            .finish_non_exhaustive()
    }
}

#[derive(Debug, Default)]
struct Links {
    present: Vec<Arc<Link>>,
    accepted: u32,
    ended: bool,
}

/// A connection on both sides of the relay.
#[derive(Debug)]
struct Link {
    number: u32,
    near: RelaySocket,
    far: RelaySocket,
    /// Nothing passes any more.
    is_cut: AtomicBool,
}

impl Link {
    /// The socket to read from and the socket to write to.
    fn ends(&self, towards: Towards) -> (&RelaySocket, &RelaySocket) {
        match towards {
            Towards::Destination => (&self.near, &self.far),
            Towards::Source => (&self.far, &self.near),
        }
    }

    fn close(&self) {
        for end in [&self.near, &self.far] {
            // Shut down, not closed, so that what was passed on before still arrives.
            end.shutdown(Shutdown::Both);
        }
    }
}

impl Relay {
    /// Relays what connects to `listener` to where `connect` connects. Without a destination there,
    /// the connection is closed.
    ///
    /// # Errors
    /// When the listener has no address, or there are no more threads.
    pub fn start(
        listener: RelayListener,
        connect: impl Fn() -> io::Result<RelaySocket> + Send + 'static,
        carries: Carries,
        policy: Arc<dyn RelayPolicy>,
    ) -> io::Result<Self> {
        let address = listener.address()?;
        let shared = Arc::new(Shared {
            listener,
            carries,
            policy,
            links: Mutex::default(),
        });
        let serving = Arc::clone(&shared);
        let thread = thread::Builder::new().name("relay-accept".into());
        thread.spawn(move || {
            while let Ok(near) = serving.listener.accept() {
                if let Ok(far) = connect() {
                    // Without a thread for it, the connection is closed.
                    let _ = serving.join(near, far);
                }
            }
        })?;
        Ok(Self { shared, address })
    }

    /// Relays what connects to the address `at` to the address `to`, each `HOST:PORT` or
    /// `unix:PATH`.
    ///
    /// # Errors
    /// When it cannot listen at `at`.
    pub fn between(
        at: &str,
        to: &str,
        carries: Carries,
        policy: Arc<dyn RelayPolicy>,
    ) -> io::Result<Self> {
        let (listener, to) = (RelayListener::bind(at)?, to.to_owned());
        Self::start(listener, move || RelaySocket::connect(&to), carries, policy)
    }

    /// The address to connect to.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Closes every link, and accepts new ones.
    pub fn cut(&self) {
        self.shared.stop(false).iter().for_each(|link| link.close());
    }

    /// Closes every link, and accepts no new ones.
    pub fn end(&self) {
        self.shared.stop(true).iter().for_each(|link| link.close());
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.end();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Links> {
        self.links.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stops relaying on the present links, and returns them to be closed.
    fn stop(&self, ends: bool) -> Vec<Arc<Link>> {
        let mut links = self.lock();
        if ends {
            links.ended = true;
            self.listener.end();
        }
        let present = std::mem::take(&mut links.present);
        for link in &present {
            link.is_cut.store(true, Ordering::SeqCst);
        }
        present
    }

    /// Passes on what arrives at either end of a connection.
    fn join(self: &Arc<Self>, near: RelaySocket, far: RelaySocket) -> io::Result<()> {
        let mut links = self.lock();
        if links.ended {
            return Ok(());
        }
        links.accepted += 1;
        let link = Arc::new(Link {
            number: links.accepted,
            near,
            far,
            is_cut: AtomicBool::new(false),
        });
        links.present.push(Arc::clone(&link));
        drop(links);
        for towards in [Towards::Destination, Towards::Source] {
            let (shared, link) = (Arc::clone(self), Arc::clone(&link));
            let thread = thread::Builder::new().name("relay".into());
            thread.spawn(move || shared.carry(&link, towards))?;
        }
        Ok(())
    }

    /// Relays one direction of a link, and its end.
    fn carry(&self, link: &Link, towards: Towards) {
        let (from, to) = link.ends(towards);
        let carried = self.carry_all(link, towards);
        self.policy.closing();
        to.shutdown(Shutdown::Write);
        // When data cannot be passed on any more, it is refused. The other direction stays open: it
        // may carry the last message of an engine.
        if carried.is_err_and(|error| error.kind() != ErrorKind::UnexpectedEof) {
            from.refuse();
        }
    }

    fn carry_all(&self, link: &Link, towards: Towards) -> io::Result<()> {
        let (_, to) = link.ends(towards);
        match self.carries {
            Carries::Messages => self.carry_messages(link, towards, &Outlet::Direct(to)),
            Carries::Bytes { delay } => {
                let outlet = Outlet::new(to, delay)?;
                let carried = self.carry_bytes(link, towards, &outlet);
                carried.and(outlet.finish())
            }
        }
    }

    fn carry_bytes(&self, link: &Link, towards: Towards, to: &Outlet<'_>) -> io::Result<()> {
        let (mut from, _) = link.ends(towards);
        let mut buffer = vec![0; BUFFER];
        loop {
            let count = from.read(&mut buffer)?;
            if count == 0 {
                return Ok(());
            }
            let bytes = buffer.get_mut(..count).unwrap_or_default();
            self.forward(link, towards, Part::Bytes, bytes, to)?;
        }
    }

    fn carry_messages(&self, link: &Link, towards: Towards, to: &Outlet<'_>) -> io::Result<()> {
        let (from, _) = link.ends(towards);
        let Greeting { role, mut bytes } = Greeting::read(from, towards)?;
        self.forward(link, towards, Part::Hello(role), &mut bytes, to)?;
        if towards == Towards::Destination {
            to.pass_on(&read_challenge(from)?)?;
        }
        loop {
            let (message, mut bytes) = Message::read(from, role, towards)?;
            self.forward(link, towards, Part::Message(message), &mut bytes, to)?;
        }
    }

    /// Passes something on, as the policy decides.
    fn forward(
        &self,
        link: &Link,
        towards: Towards,
        part: Part,
        bytes: &mut [u8],
        to: &Outlet<'_>,
    ) -> io::Result<()> {
        let len = bytes.len();
        let mut passing = Passing {
            link: link.number,
            towards,
            part,
            bytes,
        };
        let fate = self.policy.before(&mut passing);
        if link.is_cut.load(Ordering::SeqCst) {
            return Err(ErrorKind::BrokenPipe.into());
        }
        let passes = match fate {
            Fate::Pass | Fate::CutAfter | Fate::EndAfter => len,
            Fate::CutInside => len / 2,
            Fate::CutAt(count) => count,
            Fate::Drop | Fate::CutLink | Fate::CutBefore | Fate::EndBefore => 0,
        };
        // Before it is passed on: no answer may pass.
        let cut = match fate {
            Fate::Pass | Fate::Drop | Fate::CutLink => Vec::new(),
            Fate::CutBefore | Fate::CutInside | Fate::CutAt(_) | Fate::CutAfter => self.stop(false),
            Fate::EndBefore | Fate::EndAfter => self.stop(true),
        };
        let passed = to.pass_on(passing.bytes.get(..passes).unwrap_or_default());
        cut.iter().for_each(|link| link.close());
        if fate == Fate::CutLink {
            link.is_cut.store(true, Ordering::SeqCst);
            link.close();
        }
        self.policy.after(&passing);
        passed?;
        match fate {
            Fate::Pass | Fate::Drop => Ok(()),
            _ => Err(ErrorKind::BrokenPipe.into()),
        }
    }
}
