//! The datagrams of `serve`: each is sent back, and recorded as in the Linux test guest.
//!
//! A datagram begins with the number of its client and its own number, 32 bits each, big-endian.

use crate::counters::add;
use crate::memory;
use core::ptr::with_exposed_provenance_mut;
use core::slice;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use smoltcp::socket::udp;

/// The most clients, and the most numbers of a client, that are recorded.
const CLIENTS: usize = 32;
const NUMBERS: usize = 1 << 20;

/// Different datagrams that have arrived.
pub static ARRIVED: AtomicU64 = AtomicU64::new(0);
/// Numbers below the highest of their client that have not arrived.
pub static MISSING: AtomicU64 = AtomicU64::new(0);
/// Datagrams that arrived once more.
pub static REPEATED: AtomicU64 = AtomicU64::new(0);

#[derive(Debug)]
struct Client {
    number: u32,
    /// One more than the highest number that has arrived.
    end: usize,
    /// One bit for each number: whether it has arrived.
    arrived: &'static mut [u64],
}

/// The datagrams that have arrived, by client.
#[derive(Debug)]
pub struct Datagrams {
    clients: [Option<Client>; CLIENTS],
}

impl Datagrams {
    /// None.
    pub fn new() -> Self {
        Self {
            clients: [const { None }; CLIENTS],
        }
    }

    /// Answers what has arrived, as far as there is room for answers.
    pub fn answer(&mut self, socket: &mut udp::Socket<'_>) {
        while socket.can_recv() && socket.can_send() {
            let mut datagram = [0; super::DATAGRAM];
            let Ok((length, from)) = socket.recv_slice(&mut datagram) else {
                return;
            };
            let datagram = &datagram[..length];
            if let Some((client, number)) = numbers(datagram) {
                self.record(client, number);
            }
            // There is room, and a client without an address is not answered.
            let _ = socket.send_slice(datagram, from.endpoint);
        }
    }

    fn record(&mut self, number: u32, datagram: u32) {
        let datagram = datagram as usize;
        let known = |client: &&mut Option<Client>| {
            client.as_ref().is_none_or(|client| client.number == number)
        };
        let Some(place) = self.clients.iter_mut().find(known) else {
            return;
        };
        if datagram >= NUMBERS {
            return;
        }
        if place.is_none() {
            *place = Client::new(number);
        }
        let Some(client) = place else { return };
        let (word, bit) = (datagram / 64, 1 << (datagram % 64));
        if datagram >= client.end {
            add(&MISSING, (datagram - client.end) as u64);
            client.end = datagram + 1;
        } else if client.arrived[word] & bit != 0 {
            add(&REPEATED, 1);
            return;
        } else {
            add(&MISSING, 1_u64.wrapping_neg());
        }
        client.arrived[word] |= bit;
        add(&ARRIVED, 1);
    }
}

impl Client {
    fn new(number: u32) -> Option<Self> {
        let address = memory::reserve_zeroed(NUMBERS / 8)?;
        // SAFETY: reserved for this client; zeros are numbers.
        let arrived = unsafe {
            slice::from_raw_parts_mut(with_exposed_provenance_mut(address), NUMBERS / 64)
        };
        Some(Self {
            number,
            end: 0,
            arrived,
        })
    }
}

/// The client's number, and the datagram's.
fn numbers(datagram: &[u8]) -> Option<(u32, u32)> {
    let (client, rest) = datagram.split_first_chunk()?;
    let number = rest.first_chunk()?;
    Some((u32::from_be_bytes(*client), u32::from_be_bytes(*number)))
}

/// How many datagrams were lost before they arrived here, and so on: for the report.
pub fn counts() -> [u64; 3] {
    [&ARRIVED, &MISSING, &REPEATED].map(|count| count.load(Relaxed))
}
