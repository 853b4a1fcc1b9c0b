//! Connections that have not said a proper hello yet: a bounded number, each
//! with a thread that listens to it.
//!
//! Whoever comes is listened to. When there is no room left, somebody has to
//! go: the connection that has been waiting longest, of the address that has
//! most of them. So a stranger with a thousand connections from one address
//! turns its own out, and a source, which says its hello at once, is not kept
//! out by them.
//!
//! It is by strangers with an address each, as many as there is room for in the
//! time that its hello takes: nothing tells it from them before it has spoken.
//! Once a migration is under way its source's address does, and half of the room
//! is kept for it: a connection from there is turned out only by
//! others from there. So for coming back a source needs nobody's mercy, as long
//! as it comes from where it was; and whoever shares its address (by NAT, say)
//! cannot keep everybody else out.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use rustix::net::Shutdown;

use super::log_limit::LogRateLimit;
use crate::Stream;
use crate::TICK;
use hikkoshi_linux::Cancel;

/// Connections that are listened to at once.
const ROOM: usize = 64;

/// Threads of connections that were turned out and have not noticed yet: no
/// more are let in until one of them has.
const LEAVING: usize = 8;

/// How many from the source's address are preferred to all others.
const KEPT: usize = ROOM / 2;

/// The connections that are being listened to.
#[derive(Debug, Clone, Default)]
pub(crate) struct PendingHandshakes(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    /// A thread has ended.
    left: Condvar,
    log_limit: LogRateLimit,
}

#[derive(Debug, Default)]
struct State {
    /// In the order in which they came.
    waiting: VecDeque<Waiting>,
    next: u64,
    /// Threads, those that were turned out included.
    threads: usize,
    /// Where the source of the migration under way is.
    source: Option<Peer>,
}

#[derive(Debug)]
struct Waiting {
    number: u64,
    from: Peer,
    /// Another descriptor of its socket, to end it by.
    socket: OwnedFd,
}

/// Who counts as one and the same: an IPv4 address, an IPv6 network of 64 bits
/// (which is what one host is given), or whoever may use the unix socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Peer(Option<IpAddr>);

impl Peer {
    fn of(address: Option<IpAddr>) -> Self {
        Self(address.map(|address| match address.to_canonical() {
            IpAddr::V6(address) => {
                let network = address.to_bits() & (u128::MAX << 64);
                IpAddr::V6(network.into())
            }
            address @ IpAddr::V4(_) => address,
        }))
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(address) => address.fmt(f),
            None => f.write_str("a unix socket"),
        }
    }
}

/// A connection's place, until it is dropped by the thread that listens.
#[derive(Debug)]
pub(crate) struct PendingSlot {
    pending: PendingHandshakes,
    number: u64,
}

impl PendingHandshakes {
    /// The source of the migration under way is at `address`, if that is known.
    pub(crate) fn prefer(&self, address: Option<IpAddr>) {
        self.lock().source = address.map(|address| Peer::of(Some(address)));
    }

    /// Tells that a connection was turned away.
    pub(crate) fn turned_away(&self, peer: &str, error: &dyn fmt::Display) {
        self.0.log_limit.turned_away(&peer, error);
    }

    /// Makes room for a connection from `address`; nothing when `stop` is set
    /// before there is any.
    ///
    /// # Errors
    /// When its descriptor cannot be duplicated.
    pub(crate) fn enter(
        &self,
        stream: &Stream,
        address: Option<IpAddr>,
        stop: &Cancel,
    ) -> io::Result<Option<PendingSlot>> {
        let socket = stream.as_fd().try_clone_to_owned()?;
        let from = Peer::of(address);
        let mut state = self.lock();
        while state.threads >= ROOM + LEAVING {
            if stop.is_cancelled() {
                return Ok(None);
            }
            let waited = self.0.left.wait_timeout(state, TICK);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        let number = state.next;
        state.next += 1;
        state.threads += 1;
        state.waiting.push_back(Waiting {
            number,
            from,
            socket,
        });
        let out = state.one_too_many();
        drop(state);
        if let Some(out) = out {
            let why = "it has not said hello, and others wait";
            self.0.log_limit.turned_away(&out.from, &why);
            // Its thread wakes, and leaves.
            let _ = rustix::net::shutdown(&out.socket, Shutdown::Both);
        }
        Ok(Some(PendingSlot {
            pending: self.clone(),
            number,
        }))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        // Nothing in here is ever half done.
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Takes out who has to go, if there are too many.
    fn one_too_many(&mut self) -> Option<Waiting> {
        if self.waiting.len() <= ROOM {
            return None;
        }
        let mut counts: HashMap<Peer, usize> = HashMap::new();
        for waiting in &self.waiting {
            *counts.entry(waiting.from).or_default() += 1;
        }
        if let Some(source) = &self.source
            && counts.get(source).is_some_and(|&count| count <= KEPT)
        {
            // The others are more than there is room for.
            counts.remove(source);
        }
        let most = counts.values().copied().max()?;
        let oldest = |waiting: &Waiting| counts.get(&waiting.from) == Some(&most);
        let at = self.waiting.iter().position(oldest)?;
        self.waiting.remove(at)
    }
}

impl Drop for PendingSlot {
    fn drop(&mut self) {
        let mut state = self.pending.lock();
        state.waiting.retain(|other| other.number != self.number);
        state.threads -= 1;
        drop(state);
        self.pending.0.left.notify_one();
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::unix::net::UnixStream;
    use std::thread;

    fn pair() -> (Stream, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        theirs.set_nonblocking(true).unwrap();
        (Stream::Unix(ours), theirs)
    }

    fn is_out(peer: &UnixStream) -> bool {
        matches!((&mut &*peer).read(&mut [0]), Ok(0))
    }

    fn address(text: &str) -> Option<IpAddr> {
        Some(text.parse().unwrap())
    }

    #[test]
    fn who_has_most_goes_first_and_then_the_oldest() {
        let (pending, stop) = (PendingHandshakes::default(), Cancel::new());
        let mut all = Vec::new();
        let mut come = |from: &str| {
            let (stream, peer) = pair();
            let place = pending
                .enter(&stream, address(from), &stop)
                .unwrap()
                .unwrap();
            all.push((stream, peer, place));
        };
        come("10.0.0.1");
        // One host, whatever the lower half of its address says.
        for number in 0..ROOM - 1 {
            come(&format!("fd00::{number:x}"));
        }
        come("::ffff:10.0.0.1");
        come("10.0.0.2");
        let out: Vec<_> = all.iter().map(|(_, peer, _)| is_out(peer)).collect();
        let expected: Vec<_> = (0..all.len()).map(|at| at == 1 || at == 2).collect();
        assert_eq!(out, expected);
        // Whoever has left makes room.
        drop(all.drain(10..20));
        let (stream, peer) = pair();
        let _place = pending.enter(&stream, None, &stop).unwrap().unwrap();
        assert!(!is_out(&peer) && !is_out(&all[3].1));
    }

    /// Comes from there, says nothing, and stays.
    fn stay(pending: &PendingHandshakes, from: &str) -> (Stream, UnixStream, PendingSlot) {
        let (stream, peer) = pair();
        let entered = pending.enter(&stream, address(from), &Cancel::new());
        (stream, peer, entered.unwrap().unwrap())
    }

    #[test]
    fn strangers_with_an_address_each_do_not_turn_the_source_out() {
        for known in [false, true] {
            let pending = PendingHandshakes::default();
            pending.prefer(known.then(|| address("10.0.0.1").unwrap()));
            let source = stay(&pending, "::ffff:10.0.0.1");
            let mut strangers = Vec::new();
            for number in 0..3 * ROOM {
                strangers.push(stay(&pending, &format!("fd00:0:0:{number:x}::1")));
                // Whoever is out leaves.
                strangers.retain(|(_, peer, _)| !is_out(peer));
            }
            assert_eq!(is_out(&source.1), !known);
            assert_eq!(strangers.len(), ROOM - usize::from(known));
        }
    }

    #[test]
    fn others_at_the_sources_address_do_not_keep_everybody_out() {
        let pending = PendingHandshakes::default();
        pending.prefer(address("10.0.0.1"));
        let near: Vec<_> = (0..ROOM).map(|_| stay(&pending, "10.0.0.1")).collect();
        // The source, from another address than before: theirs is one too many.
        let elsewhere = stay(&pending, "10.0.0.2");
        assert!(!is_out(&elsewhere.1) && is_out(&near[0].1) && !is_out(&near[1].1));
        pending.prefer(None);
        let another = stay(&pending, "10.0.0.3");
        assert!(!is_out(&another.1) && is_out(&near[1].1));
    }

    #[test]
    fn no_more_threads_than_that() {
        let (pending, stop) = (PendingHandshakes::default(), Cancel::new());
        let mut all = Vec::new();
        for _ in 0..ROOM + LEAVING {
            let (stream, peer) = pair();
            let place = pending.enter(&stream, None, &stop).unwrap().unwrap();
            all.push((stream, peer, place));
        }
        // Nobody has noticed that it was turned out.
        stop.cancel();
        let (stream, _peer) = pair();
        assert!(pending.enter(&stream, None, &stop).unwrap().is_none());
        let waiting = thread::spawn({
            let pending = pending.clone();
            move || pending.enter(&stream, None, &Cancel::new()).unwrap()
        });
        all.pop();
        assert!(waiting.join().unwrap().is_some());
    }

    /// Many come and go at once: the books balance.
    #[test]
    fn stress() {
        let (pending, stop) = (PendingHandshakes::default(), Cancel::new());
        thread::scope(|scope| {
            for thread in 0..8u8 {
                let (pending, stop) = (&pending, &stop);
                scope.spawn(move || {
                    let mut places = VecDeque::new();
                    for round in 0..500u16 {
                        let (stream, _peer) = pair();
                        let from = IpAddr::from([10, 0, thread, (round % 3) as u8]);
                        places.push_back(pending.enter(&stream, Some(from), stop).unwrap());
                        if round % 7 > 2 || places.len() > 8 {
                            places.pop_front();
                        }
                    }
                });
            }
        });
        let state = pending.lock();
        assert_eq!((state.threads, state.waiting.len()), (0, 0));
    }
}
