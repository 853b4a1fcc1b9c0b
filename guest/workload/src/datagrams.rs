//! The UDP half of the `serve` workload: answers numbered datagrams, and records which arrived.
//!
//! A datagram begins with the number of its client and its own number, 32 bits each, big-endian;
//! the answer is the same datagram. A client knows which of its datagrams were not answered. The
//! counts here tell whether such a datagram, or its answer, was lost.

use std::collections::BTreeMap;
use std::io;
use std::net::UdpSocket;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU64, Ordering};

/// Room for datagrams that arrive while this thread waits for a page, in bytes of the kernel's
/// accounting (about 0.8 KiB for a small datagram).
const RECEIVE_BUFFER: libc::c_int = 16 << 20;
/// The longest datagram.
const LONGEST: usize = 2048;
/// The most clients, and the most numbers of a client, that are recorded.
const CLIENTS: usize = 64;
const NUMBERS: u32 = 1 << 24;

/// Datagrams by what became of them.
#[derive(Debug, Default)]
pub(crate) struct DatagramCounts {
    /// Different datagrams that arrived.
    pub(crate) arrived: AtomicU64,
    /// Numbers below the highest of their client that have not arrived.
    pub(crate) missing: AtomicU64,
    /// Datagrams that arrived once more.
    pub(crate) repeated: AtomicU64,
}

/// Opens the socket, on every address.
pub(crate) fn bind(port: u16) -> io::Result<UdpSocket> {
    let socket = UdpSocket::bind(("0.0.0.0", port))?;
    let size = RECEIVE_BUFFER;
    let len = libc::socklen_t::try_from(size_of_val(&size)).map_err(io::Error::other)?;
    // SAFETY: the kernel reads an int at the address of `size`. A failure leaves the default, which
    // is what a program without privileges gets.
    unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_RCVBUFFORCE,
            std::ptr::from_ref(&size).cast(),
            len,
        );
    }
    Ok(socket)
}

/// Answers datagrams until the socket fails.
pub(crate) fn answer(socket: &UdpSocket, counts: &DatagramCounts) -> io::Result<()> {
    let mut arrived = Arrived::default();
    let mut datagram = [0; LONGEST];
    loop {
        let (len, from) = socket.recv_from(&mut datagram)?;
        let Some(datagram) = datagram.get(..len) else {
            continue;
        };
        if let Some((client, number)) = numbers(datagram) {
            arrived.record(client, number, counts);
        }
        // A client that has ended is not an error.
        let _ = socket.send_to(datagram, from);
    }
}

/// The client's number, and the datagram's.
fn numbers(datagram: &[u8]) -> Option<(u32, u32)> {
    let (client, rest) = datagram.split_first_chunk()?;
    let number = rest.first_chunk()?;
    Some((u32::from_be_bytes(*client), u32::from_be_bytes(*number)))
}

/// The datagrams that have arrived, by client.
#[derive(Debug, Default)]
struct Arrived(BTreeMap<u32, Vec<bool>>);

impl Arrived {
    fn record(&mut self, client: u32, number: u32, counts: &DatagramCounts) {
        let is_known = self.0.contains_key(&client);
        if number >= NUMBERS || (!is_known && self.0.len() >= CLIENTS) {
            return;
        }
        let seen = self.0.entry(client).or_default();
        let index = number as usize;
        if index >= seen.len() {
            let passed = index - seen.len();
            counts.missing.fetch_add(passed as u64, Ordering::Relaxed);
            seen.resize(index + 1, false);
        } else if seen[index] {
            counts.repeated.fetch_add(1, Ordering::Relaxed);
            return;
        } else {
            counts.missing.fetch_sub(1, Ordering::Relaxed);
        }
        seen[index] = true;
        counts.arrived.fetch_add(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_and_repeated_datagrams_are_counted() {
        let counts = DatagramCounts::default();
        let mut arrived = Arrived::default();
        let mut record = |client, number| {
            arrived.record(client, number, &counts);
            [&counts.arrived, &counts.missing, &counts.repeated]
                .map(|count| count.load(Ordering::Relaxed))
        };
        assert_eq!(record(1, 0), [1, 0, 0]);
        assert_eq!(record(1, 3), [2, 2, 0], "1 and 2 are missing");
        assert_eq!(record(1, 2), [3, 1, 0], "2 was only late");
        assert_eq!(record(1, 2), [3, 1, 1]);
        assert_eq!(record(2, 1), [4, 2, 1], "another client");
        assert_eq!(record(1, NUMBERS), [4, 2, 1], "too high to be recorded");
    }

    #[test]
    fn datagrams_are_answered_as_they_are() {
        let socket = bind(0).unwrap();
        let server =
            std::net::SocketAddr::from(([127, 0, 0, 1], socket.local_addr().unwrap().port()));
        std::thread::spawn(move || answer(&socket, &DatagramCounts::default()));
        let client = UdpSocket::bind("127.0.0.1:0").unwrap();
        for datagram in [&b"abcdefgh and more"[..], b"short"] {
            client.send_to(datagram, server).unwrap();
            let mut answer = [0; LONGEST];
            let (len, _) = client.recv_from(&mut answer).unwrap();
            assert_eq!(&answer[..len], datagram);
        }
    }
}
