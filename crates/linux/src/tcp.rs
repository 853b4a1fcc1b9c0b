//! State of a TCP connection (`TCP_INFO`), and its pacing rate.
//!
//! `link/src/flow/window.rs` uses both.

use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

use rustix::io::{Errno, Result};

use crate::errno::check;

/// A part of `struct tcp_info` (`linux/tcp.h`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TcpInfo {
    /// Bytes that the peer's kernel has acknowledged (`tcpi_bytes_acked`, Linux 4.1): those that
    /// the program sent, plus one for the SYN.
    pub acked: u64,
    /// The smoothed round-trip time (`tcpi_rtt`); zero before the first measurement.
    pub round_trip: Duration,
    /// The shortest round-trip time of the last minutes (`tcpi_min_rtt`, Linux 4.6). `None`: not
    /// known.
    pub shortest_round_trip: Option<Duration>,
    /// How long ago data of the peer arrived last (`tcpi_last_data_recv`), to a few milliseconds;
    /// before the first: how long ago the connection was made.
    pub since_data: Duration,
    /// How long ago the peer's kernel acknowledged something last (`tcpi_last_ack_recv`), to a few
    /// milliseconds. The answer to a keep-alive probe is an acknowledgement, too.
    pub since_ack: Duration,
}

/// Size of the structure in Linux 4.1, up to and including `tcpi_bytes_acked`: the least.
const LEAST: usize = 128;

/// Its size in Linux 4.6, up to and including `tcpi_min_rtt`.
const KNOWN: usize = 152;

/// Offsets in the structure.
const LAST_DATA_RECEIVED: usize = 52;
const LAST_ACK_RECEIVED: usize = 56;
const ROUND_TRIP: usize = 68;
const BYTES_ACKED: usize = 120;
const SHORTEST_ROUND_TRIP: usize = 148;

/// The shortest round trip before the first measurement.
const NOT_MEASURED: u32 = u32::MAX;

impl TcpInfo {
    /// Reads the state of a connection.
    ///
    /// # Errors
    /// `EOPNOTSUPP` or `ENOPROTOOPT` when it is not TCP.
    pub fn get(socket: impl AsFd) -> Result<Self> {
        let mut bytes = [0u8; KNOWN];
        // A small constant: not truncated.
        #[allow(clippy::cast_possible_truncation)]
        let mut len = KNOWN as libc::socklen_t;
        // SAFETY: the kernel writes at most `len` bytes to the array, which has that size.
        let result = unsafe {
            libc::getsockopt(
                socket.as_fd().as_raw_fd(),
                libc::IPPROTO_TCP,
                libc::TCP_INFO,
                bytes.as_mut_ptr().cast(),
                &raw mut len,
            )
        };
        check(result)?;
        if (len as usize) < LEAST {
            return Err(Errno::NOPROTOOPT);
        }
        let field = |at: usize| bytes.get(at..).unwrap_or_default();
        let number = |at| u32::from_ne_bytes(field(at).first_chunk().copied().unwrap_or_default());
        let millis = |at| Duration::from_millis(number(at).into());
        let shortest = field(SHORTEST_ROUND_TRIP).first_chunk().copied();
        let shortest = shortest
            .filter(|_| len as usize >= KNOWN)
            .map(u32::from_ne_bytes)
            .filter(|micros| *micros != NOT_MEASURED);
        let acked = field(BYTES_ACKED)
            .first_chunk()
            .copied()
            .unwrap_or_default();
        Ok(Self {
            acked: u64::from_ne_bytes(acked),
            round_trip: Duration::from_micros(number(ROUND_TRIP).into()),
            shortest_round_trip: shortest.map(|micros| Duration::from_micros(micros.into())),
            since_data: millis(LAST_DATA_RECEIVED),
            since_ack: millis(LAST_ACK_RECEIVED),
        })
    }
}

/// Limits the rate at which the kernel sends on a connection, evenly over time
/// (`SO_MAX_PACING_RATE`, `socket(7)`; TCP does this without the `fq` queueing discipline since
/// Linux 4.13). [`u64::MAX`]: no limit.
///
/// # Errors
/// Errors of `setsockopt`.
pub fn set_pace(socket: impl AsFd, bytes_per_second: u64) -> Result<()> {
    // SAFETY: the kernel reads the 8 bytes of the number.
    let result = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_MAX_PACING_RATE,
            (&raw const bytes_per_second).cast(),
            8,
        )
    };
    check(result)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::os::unix::net::UnixStream;
    use std::time::Instant;

    #[test]
    fn acked_counts_the_bytes_that_the_peer_received() {
        let begun = Instant::now();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut peer, _) = listener.accept().unwrap();
        let before = TcpInfo::get(&stream).unwrap();
        stream.write_all(&[1; 100_000]).unwrap();
        peer.read_exact(&mut [0; 100_000]).unwrap();
        // A limit in case of a hang only.
        let deadline = Instant::now() + Duration::from_secs(60);
        let mut after = TcpInfo::get(&stream).unwrap();
        while after.acked < before.acked + 100_000 && Instant::now() < deadline {
            after = TcpInfo::get(&stream).unwrap();
        }
        assert_eq!(after.acked, before.acked + 100_000);
        assert!(!after.round_trip.is_zero());
        // Not a number of another field: over loopback in less than the time of this test.
        let shortest = after.shortest_round_trip.unwrap();
        assert!(shortest <= begun.elapsed(), "{shortest:?}");
    }

    /// Also after the peer has closed the connection.
    #[test]
    fn the_last_data_and_the_last_acknowledgement_are_told_apart() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut peer, _) = listener.accept().unwrap();
        peer.write_all(&[1]).unwrap();
        stream.read_exact(&mut [0]).unwrap();
        let received = Instant::now();
        // The kernel's clock has ticks of up to 10 ms.
        let pause = Duration::from_millis(100);
        std::thread::sleep(pause);
        stream.write_all(&[1]).unwrap();
        peer.read_exact(&mut [0]).unwrap();
        drop(peer);
        let deadline = Instant::now() + Duration::from_secs(60);
        let info = loop {
            let info = TcpInfo::get(&stream).unwrap();
            if info.since_ack < info.since_data || Instant::now() > deadline {
                break info;
            }
        };
        let tick = Duration::from_millis(20);
        assert!(info.since_data >= pause - tick, "{info:?}");
        assert!(info.since_data <= received.elapsed() + tick, "{info:?}");
        assert!(info.since_ack + pause - tick <= info.since_data, "{info:?}");
    }

    #[test]
    fn pacing_works_on_tcp_sockets_only() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        set_pace(&stream, 1 << 40).unwrap();
        set_pace(&stream, u64::MAX).unwrap();
        let (local, _peer) = UnixStream::pair().unwrap();
        assert!(TcpInfo::get(&local).is_err());
    }
}
