//! Pending handshakes: a bounded number of accepted connections, each with a thread.
//!
//! Every new connection gets a slot. When there are too many, one is evicted: the oldest connection
//! of the address that has most of them. So a host with a thousand connections from one address
//! evicts its own connections. It does not keep out a source, which sends its hello at once.
//!
//! Many hosts with an address each can evict the source, if they open as many connections as there
//! are slots in the time that the hello takes: before the hello, the listener cannot distinguish
//! them. Once a migration is under way, the listener knows the source's address and reserves half
//! of the slots for it: only other connections from that address can evict a connection from there.
//! So a source can always reconnect from its previous address, and hosts that share this address
//! (by NAT, for example) cannot keep all others out. The front of several receivers knows several
//! sources, and each address has the same share of the reserved slots, at least one.
//!
//! A connection to a unix socket may carry another one, which a front has accepted
//! (`accept/handed.rs`): its peer is known when that has arrived. Until then it has a place among
//! others of its kind, and takes no slot ([`PendingSlot::identify`]).

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use rustix::net::Shutdown;

use crate::Stream;
use crate::TICK;
use crate::accept::log_limit::LogRateLimit;
use hikkoshi_linux::CancelFlag;

/// The number of pending handshakes.
const SLOTS: usize = 64;

/// Connections to a unix socket of which nothing has arrived. For a further one the oldest is
/// evicted.
const UNIDENTIFIED: usize = 64;

/// Threads of evicted connections that have not ended yet. When there are so many, the listener
/// waits until one of them ends.
const EVICTED_THREADS: usize = 8;

/// Slots that are reserved for the addresses of sources.
const RESERVED: usize = SLOTS / 2;

/// The pending handshakes of one listener.
#[derive(Debug, Clone, Default)]
pub(crate) struct PendingHandshakes(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    /// A thread has ended.
    thread_ended: Condvar,
    log_limit: LogRateLimit,
}

#[derive(Debug, Default)]
struct State {
    /// Oldest first.
    waiting: VecDeque<Pending>,
    /// Those whose peers are not known yet. Oldest first.
    unidentified: VecDeque<Pending>,
    next: u64,
    /// Threads, including those of evicted connections.
    threads: usize,
    /// The addresses of the sources of the migrations under way, each once.
    sources: Vec<Peer>,
}

#[derive(Debug)]
struct Pending {
    number: u64,
    from: Peer,
    /// A duplicate of the socket's descriptor, to shut it down.
    socket: OwnedFd,
}

/// What counts as one peer: an IPv4 address, an IPv6 /64 network (which one host usually gets), or
/// all users of the unix socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Peer(Option<IpAddr>);

impl Peer {
    fn of_address(address: Option<IpAddr>) -> Self {
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

/// A connection's slot. The handshake thread frees it by dropping it.
#[derive(Debug)]
pub(crate) struct PendingSlot {
    pending: PendingHandshakes,
    number: u64,
}

impl PendingHandshakes {
    /// Sets the addresses of the sources of the migrations under way, as far as they are known.
    pub(crate) fn set_source_addresses(&self, addresses: impl IntoIterator<Item = IpAddr>) {
        let mut sources = Vec::new();
        for address in addresses {
            let source = Peer::of_address(Some(address));
            if !sources.contains(&source) {
                sources.push(source);
            }
        }
        self.lock().sources = sources;
    }

    /// Logs that a connection was rejected.
    pub(crate) fn log_rejection(&self, peer: &str, error: &dyn fmt::Display) {
        self.0.log_limit.log_rejection(&peer, error);
    }

    /// Adds a connection from `address`, and evicts another one if there are too many. `None`: a
    /// connection to a unix socket, which has no slot before [`PendingSlot::identify`]. Returns
    /// `None` if `stop` is set while it waits for threads to end.
    ///
    /// # Errors
    /// When its descriptor cannot be duplicated.
    pub(crate) fn add(
        &self,
        stream: &Stream,
        address: Option<IpAddr>,
        stop: &CancelFlag,
    ) -> io::Result<Option<PendingSlot>> {
        let socket = stream.as_fd().try_clone_to_owned()?;
        let mut state = self.lock();
        while state.threads - state.unidentified.len() >= SLOTS + EVICTED_THREADS {
            if stop.is_cancelled() {
                return Ok(None);
            }
            let waited = self.0.thread_ended.wait_timeout(state, TICK);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        let number = state.next;
        state.next += 1;
        state.threads += 1;
        let new = Pending {
            number,
            from: Peer::of_address(address),
            socket,
        };
        let out = match address {
            Some(_) => {
                state.waiting.push_back(new);
                state.evict_if_full()
            }
            None => {
                state.unidentified.push_back(new);
                let is_full = state.unidentified.len() > UNIDENTIFIED;
                is_full.then(|| state.unidentified.pop_front()).flatten()
            }
        };
        drop(state);
        self.end(out);
        Ok(Some(PendingSlot {
            pending: self.clone(),
            number,
        }))
    }

    /// Ends a connection that was evicted.
    fn end(&self, out: Option<Pending>) {
        if let Some(out) = out {
            let why = "it has not sent a greeting, and other connections wait";
            self.0.log_limit.log_rejection(&out.from, &why);
            // Its thread's read ends, and the thread exits.
            let _ = rustix::net::shutdown(&out.socket, Shutdown::Both);
        }
    }

    /// The slots that are taken.
    #[cfg(test)]
    #[cfg(not(loom))]
    pub(crate) fn slots(&self) -> usize {
        self.lock().waiting.len()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        // The state is consistent even after a panic.
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Removes the connection to evict, if there are too many.
    fn evict_if_full(&mut self) -> Option<Pending> {
        if self.waiting.len() <= SLOTS {
            return None;
        }
        let mut counts: HashMap<Peer, usize> = HashMap::new();
        for waiting in &self.waiting {
            *counts.entry(waiting.from).or_default() += 1;
        }
        let share = RESERVED
            .checked_div(self.sources.len())
            .map_or(0, |share| share.max(1));
        let is_protected = |peer: &Peer| self.sources.contains(peer) && counts[peer] <= share;
        let unprotected = |peer: &Peer| !is_protected(peer);
        // Without any, there are more sources than slots.
        if counts.keys().any(unprotected) {
            let protected: Vec<Peer> = counts.keys().copied().filter(is_protected).collect();
            for peer in protected {
                counts.remove(&peer);
            }
        }
        let most = counts.values().copied().max()?;
        let oldest = |waiting: &Pending| counts.get(&waiting.from) == Some(&most);
        let at = self.waiting.iter().position(oldest)?;
        self.waiting.remove(at)
    }
}

impl PendingSlot {
    /// The peer of a connection to a unix socket is known: `address`, or a user of that socket.
    /// From now on its socket is `stream`, and it has a slot. If it was evicted before, it is shut
    /// down.
    ///
    /// # Errors
    /// When its descriptor cannot be duplicated.
    pub(crate) fn identify(&self, stream: &Stream, address: Option<IpAddr>) -> io::Result<()> {
        let socket = stream.as_fd().try_clone_to_owned()?;
        let mut state = self.pending.lock();
        let mut others = state.unidentified.iter();
        let at = others.position(|other| other.number == self.number);
        let Some(before) = at.and_then(|at| state.unidentified.remove(at)) else {
            drop(state);
            // What was evicted was the connection that has carried this one.
            let _ = rustix::net::shutdown(&socket, Shutdown::Both);
            return Ok(());
        };
        state.waiting.push_back(Pending {
            from: Peer::of_address(address),
            socket,
            ..before
        });
        let out = state.evict_if_full();
        drop(state);
        self.pending.end(out);
        Ok(())
    }
}

impl Drop for PendingSlot {
    fn drop(&mut self) {
        let mut state = self.pending.lock();
        state.waiting.retain(|other| other.number != self.number);
        state
            .unidentified
            .retain(|other| other.number != self.number);
        state.threads -= 1;
        drop(state);
        self.pending.0.thread_ended.notify_one();
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

    fn is_evicted(peer: &UnixStream) -> bool {
        matches!((&mut &*peer).read(&mut [0]), Ok(0))
    }

    fn address(text: &str) -> Option<IpAddr> {
        Some(text.parse().unwrap())
    }

    #[test]
    fn the_address_with_most_connections_loses_its_oldest() {
        let (pending, stop) = (PendingHandshakes::default(), CancelFlag::new());
        let mut all = Vec::new();
        let mut connect = |from: &str| {
            let (stream, peer) = pair();
            let slot = pending.add(&stream, address(from), &stop).unwrap().unwrap();
            all.push((stream, peer, slot));
        };
        connect("10.0.0.1");
        // One host: an IPv6 address counts by its upper half.
        for number in 0..SLOTS - 1 {
            connect(&format!("fd00::{number:x}"));
        }
        connect("::ffff:10.0.0.1");
        connect("10.0.0.2");
        let out: Vec<_> = all.iter().map(|(_, peer, _)| is_evicted(peer)).collect();
        let expected: Vec<_> = (0..all.len()).map(|at| at == 1 || at == 2).collect();
        assert_eq!(out, expected);
        // A connection that has ended frees its slot.
        drop(all.drain(10..20));
        let (stream, peer) = pair();
        let slot = pending.add(&stream, None, &stop).unwrap().unwrap();
        slot.identify(&stream, None).unwrap();
        assert!(!is_evicted(&peer) && !is_evicted(&all[3].1));
    }

    /// A connection that carries another one, which has not arrived.
    fn carrier(pending: &PendingHandshakes) -> (UnixStream, PendingSlot) {
        let (stream, peer) = pair();
        let slot = pending.add(&stream, None, &CancelFlag::new());
        (peer, slot.unwrap().unwrap())
    }

    /// Connections that others have carried count by their own peers, and are themselves evicted.
    #[test]
    fn a_connection_that_was_carried_counts_by_its_peer() {
        for known in [false, true] {
            let pending = PendingHandshakes::default();
            pending.set_source_addresses(known.then(|| address("10.0.0.1").unwrap()));
            let carried = |from: &str| {
                let ((_, slot), (stream, peer)) = (carrier(&pending), pair());
                slot.identify(&stream, address(from)).unwrap();
                (slot, stream, peer)
            };
            let source = carried("10.0.0.1");
            let one_host: Vec<_> = (0..SLOTS).map(|_| carried("10.0.0.2")).collect();
            assert!(is_evicted(&one_host[0].2) && !is_evicted(&one_host[1].2));
            assert!(!is_evicted(&source.2));
            drop(one_host);
            let from = |number: usize| format!("fd00:0:0:{number:x}::1");
            let _many: Vec<_> = (0..SLOTS).map(|number| carried(&from(number))).collect();
            assert_eq!(is_evicted(&source.2), !known);
        }
    }

    #[test]
    fn a_connection_that_has_not_arrived_is_evicted_only_by_others_like_it() {
        let pending = PendingHandshakes::default();
        let (first, first_slot) = carrier(&pending);
        let slots: Vec<_> = (0..SLOTS)
            .map(|_| silent_connection(&pending, "10.0.0.2"))
            .collect();
        assert!(!is_evicted(&first) && !is_evicted(&slots[0].1));
        let others: Vec<_> = (0..UNIDENTIFIED).map(|_| carrier(&pending)).collect();
        assert!(is_evicted(&first) && !is_evicted(&slots[0].1));
        // It arrives nevertheless: its message was in the queue.
        let (stream, peer) = pair();
        first_slot.identify(&stream, address("10.0.0.1")).unwrap();
        assert!(is_evicted(&peer));
        drop((first_slot, slots, others));
        let state = pending.lock();
        let left = (state.threads, state.waiting.len(), state.unidentified.len());
        assert_eq!(left, (0, 0, 0));
    }

    /// Opens a connection that sends nothing.
    fn silent_connection(
        pending: &PendingHandshakes,
        from: &str,
    ) -> (Stream, UnixStream, PendingSlot) {
        let (stream, peer) = pair();
        let entered = pending.add(&stream, address(from), &CancelFlag::new());
        (stream, peer, entered.unwrap().unwrap())
    }

    #[test]
    fn connections_from_many_addresses_do_not_evict_the_source() {
        for known in [false, true] {
            let pending = PendingHandshakes::default();
            pending.set_source_addresses(known.then(|| address("10.0.0.1").unwrap()));
            let source = silent_connection(&pending, "::ffff:10.0.0.1");
            let mut others = Vec::new();
            for number in 0..3 * SLOTS {
                others.push(silent_connection(
                    &pending,
                    &format!("fd00:0:0:{number:x}::1"),
                ));
                // Evicted connections end.
                others.retain(|(_, peer, _)| !is_evicted(peer));
            }
            assert_eq!(is_evicted(&source.1), !known);
            assert_eq!(others.len(), SLOTS - usize::from(known));
        }
    }

    #[test]
    fn others_at_the_sources_address_do_not_keep_all_out() {
        let pending = PendingHandshakes::default();
        pending.set_source_addresses(address("10.0.0.1"));
        let at_source: Vec<_> = (0..SLOTS)
            .map(|_| silent_connection(&pending, "10.0.0.1"))
            .collect();
        // The source, from another address than before: its old address has one too many.
        let from_new_address = silent_connection(&pending, "10.0.0.2");
        assert!(
            !is_evicted(&from_new_address.1)
                && is_evicted(&at_source[0].1)
                && !is_evicted(&at_source[1].1)
        );
        pending.set_source_addresses(None);
        let another = silent_connection(&pending, "10.0.0.3");
        assert!(!is_evicted(&another.1) && is_evicted(&at_source[1].1));
    }

    #[test]
    fn each_source_has_its_share() {
        let pending = PendingHandshakes::default();
        let source = |number: usize| format!("10.0.0.{number}");
        let flood = |others: &mut Vec<(Stream, UnixStream, PendingSlot)>| {
            for number in 0..2 * SLOTS {
                let other = format!("fd00:0:0:{number:x}::1");
                others.push(silent_connection(&pending, &other));
                others.retain(|(_, peer, _)| !is_evicted(peer));
            }
        };
        // The second source twice, as two migrations from one host.
        let sources = [1, 2, 2].map(|number| address(&source(number)).unwrap());
        pending.set_source_addresses(sources);
        let mut all = vec![silent_connection(&pending, &source(1))];
        all.extend((0..=RESERVED / 2).map(|_| silent_connection(&pending, &source(2))));
        let mut others = Vec::new();
        flood(&mut others);
        let evicted = |all: &[(Stream, UnixStream, PendingSlot)]| -> Vec<usize> {
            let all = all.iter().enumerate();
            let evicted = all.filter(|(_, (_, peer, _))| is_evicted(peer));
            evicted.map(|(at, _)| at).collect()
        };
        assert_eq!(evicted(&all), [1], "the second source had one too many");
        drop((all, others));
        // With more sources than slots, the oldest connection is evicted.
        let sources: Vec<String> = (0..=SLOTS).map(source).collect();
        pending.set_source_addresses(sources.iter().map(|source| source.parse().unwrap()));
        let all: Vec<_> = sources
            .iter()
            .map(|source| silent_connection(&pending, source))
            .collect();
        assert_eq!(evicted(&all), [0]);
    }

    #[test]
    fn the_number_of_threads_is_bounded() {
        let (pending, stop) = (PendingHandshakes::default(), CancelFlag::new());
        let mut all = Vec::new();
        let from = address("10.0.0.1");
        for _ in 0..SLOTS + EVICTED_THREADS {
            let (stream, peer) = pair();
            let slot = pending.add(&stream, from, &stop).unwrap().unwrap();
            all.push((stream, peer, slot));
        }
        // No thread has noticed its eviction.
        stop.cancel();
        let (stream, _peer) = pair();
        assert!(pending.add(&stream, from, &stop).unwrap().is_none());
        let waiting = thread::spawn({
            let pending = pending.clone();
            move || pending.add(&stream, from, &CancelFlag::new()).unwrap()
        });
        all.pop();
        assert!(waiting.join().unwrap().is_some());
    }

    /// Many threads add and drop connections at once; the counters are zero afterwards.
    #[test]
    fn concurrent_connections() {
        let (pending, stop) = (PendingHandshakes::default(), CancelFlag::new());
        thread::scope(|scope| {
            for thread in 0..8u8 {
                let (pending, stop) = (&pending, &stop);
                scope.spawn(move || {
                    let mut slots = VecDeque::new();
                    for round in 0..500u16 {
                        let (stream, _peer) = pair();
                        let from = IpAddr::from([10, 0, thread, (round % 3) as u8]);
                        let at_first = (round % 2 == 0).then_some(from);
                        let slot = pending.add(&stream, at_first, stop).unwrap().unwrap();
                        if at_first.is_none() {
                            slot.identify(&stream, Some(from)).unwrap();
                        }
                        slots.push_back(slot);
                        if round % 7 > 2 || slots.len() > 8 {
                            slots.pop_front();
                        }
                    }
                });
            }
        });
        let state = pending.lock();
        let left = (state.threads, state.waiting.len(), state.unidentified.len());
        assert_eq!(left, (0, 0, 0));
    }
}
