//! The `serve` workload: answers lines over TCP with the guest's time, and datagrams over UDP
//! ([`datagrams`]).
//!
//! A client sends a line, and the guest answers `NANOSECONDS LINE`, where the number is the guest's
//! monotonic clock. A client that sends numbered lines at a steady rate measures its connection's
//! outage as the longest time between two answers. The line `clocks` is answered with the readings
//! of all clocks instead.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use crate::clock;
use crate::datagrams::{self, DatagramCounts};

/// Maximum length of a line; a longer one closes its connection.
const LINE_LIMIT: u64 = 4096;
/// Maximum number of connections; further ones are closed at once.
const CONNECTIONS: u64 = 64;

/// The server's counters.
#[derive(Debug, Default)]
pub(crate) struct Served {
    pub(crate) open: AtomicU64,
    pub(crate) lines: AtomicU64,
    pub(crate) datagrams: DatagramCounts,
}

/// Listens on every address, at this port of TCP and of UDP.
pub(crate) fn start(port: u16, started: Instant) -> io::Result<Arc<Served>> {
    let listener = TcpListener::bind(("0.0.0.0", port))?;
    serve(listener, datagrams::bind(port)?, started)
}

fn serve(listener: TcpListener, socket: UdpSocket, started: Instant) -> io::Result<Arc<Served>> {
    let served = Arc::new(Served::default());
    let counts = Arc::clone(&served);
    std::thread::Builder::new()
        .name("serve".to_owned())
        .spawn(move || accept(&listener, &counts, started))?;
    let counts = Arc::clone(&served);
    std::thread::Builder::new()
        .name("datagrams".to_owned())
        .spawn(move || datagrams::answer(&socket, &counts.datagrams))?;
    Ok(served)
}

fn accept(listener: &TcpListener, counts: &Arc<Served>, started: Instant) {
    for stream in listener.incoming() {
        let Ok(stream) = stream else { continue };
        if counts.open.load(Ordering::Relaxed) >= CONNECTIONS {
            continue;
        }
        counts.open.fetch_add(1, Ordering::Relaxed);
        let answering = Arc::clone(counts);
        let spawned = std::thread::Builder::new()
            .name("answer".to_owned())
            .spawn(move || {
                // Disconnecting clients are not an error.
                let _ = answer(stream, &answering, started);
                answering.open.fetch_sub(1, Ordering::Relaxed);
            });
        if spawned.is_err() {
            counts.open.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

fn answer(stream: TcpStream, counts: &Served, started: Instant) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut answers = stream.try_clone()?;
    let mut requests = BufReader::new(stream);
    let mut line = Vec::new();
    loop {
        line.clear();
        requests
            .by_ref()
            .take(LINE_LIMIT)
            .read_until(b'\n', &mut line)?;
        if line.last() != Some(&b'\n') {
            return Ok(());
        }
        let reply = if line == b"clocks\n" {
            clocks(started).into_bytes()
        } else {
            let mut reply = format!("{} ", started.elapsed().as_nanos()).into_bytes();
            reply.extend_from_slice(&line);
            reply
        };
        answers.write_all(&reply)?;
        counts.lines.fetch_add(1, Ordering::Relaxed);
    }
}

/// The monotonic clock, the real-time clock, the monotonic clock once more, in nanoseconds, and the
/// time-stamp counter: the first and the last reading bound the time of the others.
fn clocks(started: Instant) -> String {
    let before = started.elapsed().as_nanos();
    let real = SystemTime::now().duration_since(UNIX_EPOCH);
    let ticks = clock::ticks();
    let after = started.elapsed().as_nanos();
    let real = real.unwrap_or_default().as_nanos();
    format!("{before} {real} {after} {ticks}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_answered_with_the_time_unless_too_long() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let served = serve(listener, datagrams::bind(0).unwrap(), Instant::now()).unwrap();
        let mut client = TcpStream::connect(("127.0.0.1", port)).unwrap();
        let mut answers = BufReader::new(client.try_clone().unwrap());
        let mut last = 0;
        for n in 0..3 {
            client.write_all(format!("n {n}\n").as_bytes()).unwrap();
            let mut answer = String::new();
            answers.read_line(&mut answer).unwrap();
            let (time, text) = answer.split_once(' ').unwrap();
            assert_eq!(text, format!("n {n}\n"));
            let time: u64 = time.parse().unwrap();
            assert!(time > last);
            last = time;
        }
        client.write_all(b"clocks\n").unwrap();
        let mut answer = String::new();
        answers.read_line(&mut answer).unwrap();
        let numbers: Vec<u64> = answer
            .split_whitespace()
            .map(|n| n.parse().unwrap())
            .collect();
        assert_eq!(numbers.len(), 4);
        assert!(last < numbers[0] && numbers[0] <= numbers[2] && numbers[2] < numbers[1]);
        client.write_all(&[b'x'; 4096]).unwrap();
        let mut rest = String::new();
        // Closed, either in order or by a reset.
        assert!(!matches!(answers.read_line(&mut rest), Ok(n) if n > 0));
        assert_eq!(served.lines.load(Ordering::Relaxed), 4);
    }
}
