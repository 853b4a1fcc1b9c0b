//! A client of the guest that sends numbered datagrams.

use super::namespace::Namespace;
use crate::LabError;
use std::fmt;
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// When a client sends its next datagram.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Pace {
    /// At fixed times, this far apart, answered or not.
    FixedTimes(Duration),
    /// When the one before has been answered, at least this long after it. Without an answer the
    /// client waits.
    OneAfterAnother(Duration),
}

/// How long the client waits, when it ends, for further answers.
const LAST_ANSWERS: Duration = Duration::from_secs(10);

/// How often the threads check whether to stop.
const CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// A client that sends numbered datagrams to a guest with the workload `serve`, and records which
/// were answered, and when.
#[derive(Debug)]
pub struct DatagramClient {
    shared: Arc<Shared>,
    sender: JoinHandle<io::Result<u32>>,
    receiver: JoinHandle<io::Result<()>>,
}

#[derive(Debug)]
struct Shared {
    socket: UdpSocket,
    client: u32,
    /// No further datagrams.
    stop: AtomicBool,
    /// No further answers.
    end: AtomicBool,
    answers: Mutex<Vec<Answer>>,
    /// Another answer has arrived.
    arrived: Condvar,
}

#[derive(Clone, Copy, Debug)]
struct Answer {
    number: u32,
    at: Instant,
}

/// What became of a client's datagrams.
#[derive(Clone, Default, Eq, PartialEq)]
pub struct Datagrams {
    /// Datagrams sent.
    pub sent: u32,
    /// Those without an answer.
    pub lost: Vec<u32>,
    /// Those with more than one.
    pub repeated: Vec<u32>,
    /// When each answer arrived, in order.
    pub answered: Vec<Instant>,
}

impl fmt::Debug for Datagrams {
    /// Without the time of each of a thousand answers, and with a few datagrams of thousands.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Datagrams")
            .field("sent", &self.sent)
            .field("lost", &self.lost.len())
            .field("first_lost", &self.lost.iter().take(10).collect::<Vec<_>>())
            .field("repeated", &self.repeated)
            .field("answers", &self.answered.len())
            .finish_non_exhaustive()
    }
}

impl DatagramClient {
    /// Starts client number `client` in a namespace.
    ///
    /// # Errors
    /// When the socket cannot be opened.
    pub fn start(
        namespace: &Namespace,
        server: SocketAddr,
        client: u32,
        pace: Pace,
    ) -> Result<Self, LabError> {
        let failed = |source| LabError::File {
            doing: "opening a socket to",
            path: server.to_string().into(),
            source,
        };
        let socket = namespace.run(|| open(server))?.map_err(failed)?;
        let shared = Arc::new(Shared {
            socket,
            client,
            stop: AtomicBool::new(false),
            end: AtomicBool::new(false),
            answers: Mutex::new(Vec::new()),
            arrived: Condvar::new(),
        });
        let (sending, receiving) = (Arc::clone(&shared), Arc::clone(&shared));
        Ok(Self {
            shared,
            sender: std::thread::spawn(move || sending.send_all(pace)),
            receiver: std::thread::spawn(move || receiving.receive_all()),
        })
    }

    /// Answers so far, repeated ones included.
    pub fn answers(&self) -> usize {
        self.shared.answers().len()
    }

    /// Waits for this many further answers; returns whether they came within `limit`.
    pub fn wait_answers(&self, more: usize, limit: Duration) -> bool {
        let wanted = self.answers() + more;
        let deadline = Instant::now() + limit;
        while self.answers() < wanted {
            if Instant::now() > deadline || self.sender.is_finished() {
                return false;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        true
    }

    /// Stops sending, waits for the last answers, and returns what became of all datagrams.
    ///
    /// # Errors
    /// When the socket has failed.
    pub fn finish(self) -> io::Result<Datagrams> {
        let died = |_| io::Error::other("the client panicked");
        self.shared.stop.store(true, Ordering::Release);
        let sent = self.sender.join().map_err(died)??;
        let mut before = usize::MAX;
        let mut datagrams = self.shared.summary(sent);
        // As long as answers come, the others may be on their way.
        while !datagrams.lost.is_empty() && before != self.shared.answers().len() {
            before = self.shared.answers().len();
            let deadline = Instant::now() + LAST_ANSWERS;
            while Instant::now() < deadline && self.shared.answers().len() == before {
                std::thread::sleep(Duration::from_millis(5));
            }
            datagrams = self.shared.summary(sent);
        }
        self.shared.end.store(true, Ordering::Release);
        self.receiver.join().map_err(died)??;
        Ok(datagrams)
    }
}

fn open(server: SocketAddr) -> io::Result<UdpSocket> {
    let socket = UdpSocket::bind(("0.0.0.0", 0))?;
    // Answers that arrive while this process does not run are not lost.
    rustix::net::sockopt::set_socket_recv_buffer_size_force(&socket, 16 << 20)?;
    socket.connect(server)?;
    socket.set_read_timeout(Some(CHECK_INTERVAL))?;
    Ok(socket)
}

impl Shared {
    fn answers(&self) -> MutexGuard<'_, Vec<Answer>> {
        self.answers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns how many datagrams were sent.
    fn send_all(&self, pace: Pace) -> io::Result<u32> {
        let (Pace::FixedTimes(interval) | Pace::OneAfterAnother(interval)) = pace;
        let mut next = Instant::now();
        let mut number = 0u32;
        while !self.stop.load(Ordering::Acquire) {
            let mut datagram = self.client.to_be_bytes().to_vec();
            datagram.extend(number.to_be_bytes());
            match self.socket.send(&datagram) {
                // The guest's kernel reported an earlier one as undeliverable.
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {}
                sent => drop(sent?),
            }
            if matches!(pace, Pace::OneAfterAnother(_)) {
                if !self.wait_answer(number) {
                    return Ok(number + 1);
                }
                // Without catching up.
                next = next.max(Instant::now() - interval);
            }
            number += 1;
            next += interval;
            std::thread::sleep(next.saturating_duration_since(Instant::now()));
        }
        Ok(number)
    }

    /// Waits until this datagram is answered; returns false if the client has to stop.
    fn wait_answer(&self, number: u32) -> bool {
        let mut answers = self.answers();
        loop {
            // A repeated answer to an earlier one may have come after it.
            if answers
                .iter()
                .rev()
                .take(16)
                .any(|answer| answer.number == number)
            {
                return true;
            }
            if self.stop.load(Ordering::Acquire) {
                return false;
            }
            let waited = self.arrived.wait_timeout(answers, CHECK_INTERVAL);
            answers = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn receive_all(&self) -> io::Result<()> {
        let mut answer = [0; 16];
        while !self.end.load(Ordering::Acquire) {
            let len = match self.socket.recv(&mut answer) {
                Ok(len) => len,
                Err(error)
                    if matches!(
                        error.kind(),
                        io::ErrorKind::WouldBlock
                            | io::ErrorKind::TimedOut
                            | io::ErrorKind::ConnectionRefused
                    ) =>
                {
                    continue;
                }
                Err(error) => return Err(error),
            };
            let number = answer[..len].get(4..8).and_then(|n| n.try_into().ok());
            if let Some(number) = number.map(u32::from_be_bytes) {
                let at = Instant::now();
                self.answers().push(Answer { number, at });
                self.arrived.notify_one();
            }
        }
        Ok(())
    }

    fn summary(&self, sent: u32) -> Datagrams {
        summary(sent, &self.answers())
    }
}

fn summary(sent: u32, answers: &[Answer]) -> Datagrams {
    let mut counts = vec![0u32; sent as usize];
    for answer in answers {
        if let Some(count) = counts.get_mut(answer.number as usize) {
            *count += 1;
        }
    }
    let with = |wanted: fn(u32) -> bool| {
        let numbers = (0u32..).zip(&counts);
        let found = numbers.filter(|(_, count)| wanted(**count));
        found.map(|(number, _)| number).collect()
    };
    Datagrams {
        sent,
        lost: with(|count| count == 0),
        repeated: with(|count| count > 1),
        answered: answers.iter().map(|answer| answer.at).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lost_and_repeated_datagrams_are_told_apart() {
        let zero = Instant::now();
        let answers = [(0, 1), (2, 5), (2, 6), (3, 7)].map(|(number, ms)| Answer {
            number,
            at: zero + Duration::from_millis(ms),
        });
        let datagrams = summary(5, &answers);
        assert_eq!(datagrams.lost, [1, 4]);
        assert_eq!(datagrams.repeated, [2]);
        let last = datagrams.answered.last().copied();
        assert_eq!(last, Some(zero + Duration::from_millis(7)));
        assert_eq!(summary(0, &[]), Datagrams::default());
    }
}
