//! 128 clients of the guest's web server, on one thread.
//!
//! Each client keeps its connection and requests a file at fixed intervals, or the next one as soon
//! as it has an answer. A late answer delays only the next request of that client. Every answer's
//! content is checked: its length, the number at its start, and the checksum at its end
//! (`guest/workload/src/web_files.rs`).

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::{Deserialize, Serialize};

use crate::plan::{WEB_FILE_BYTES, WEB_FILES};

/// Number of clients.
const CLIENTS: usize = 128;
/// Time between two requests of a client. Together they make 64 requests a second, 6.5 MB/s: less
/// than half of what an emulated guest serves with a core for itself.
pub(crate) const INTERVAL: Duration = Duration::from_secs(2);
/// The longest sleep without checking `stop`.
const TURN: Duration = Duration::from_millis(20);
/// Time limit for connecting.
const CONNECT: Duration = Duration::from_secs(30);
/// How long to wait for answers after `stop`.
const LAST: Duration = Duration::from_secs(10);
/// Upper limit for the length of an answer's header.
const HEADER_LIMIT: usize = 4096;

/// When a client requests which file.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Demand {
    /// The next one, at every [`INTERVAL`].
    AtIntervals,
    /// One at random, as soon as the last answer is complete.
    WithoutPause,
}

/// The answers that the clients got.
#[derive(Clone, Debug, Default)]
pub(crate) struct Responses {
    /// When each request was sent, and the time until its answer was complete.
    pub answers: Vec<(Instant, Duration)>,
    /// Requests without an answer at the end.
    pub unanswered: usize,
    /// Broken connections and wrong answers.
    pub errors: Vec<String>,
}

/// Response times in a span of time, in ms.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize, Serialize)]
pub(crate) struct Span {
    /// Answers to requests sent in the span.
    pub answers: usize,
    /// The median.
    pub p50_ms: f64,
    /// 99 % were at most this slow.
    pub p99_ms: f64,
    /// The slowest.
    pub max_ms: f64,
}

impl Responses {
    /// Answers completed a second, from `from` until before `until`.
    #[allow(clippy::cast_precision_loss)] // far below 2^52
    pub(crate) fn per_second(&self, from: Instant, until: Instant) -> f64 {
        let inside = |(sent, took): &&(Instant, Duration)| (from..until).contains(&(*sent + *took));
        let answers = self.answers.iter().filter(inside).count();
        answers as f64 / until.duration_since(from).as_secs_f64().max(1e-9)
    }

    /// The answers to requests sent from `from` until before `until`.
    pub(crate) fn span(&self, from: Instant, until: Instant) -> Option<Span> {
        let mut times: Vec<f64> = self
            .answers
            .iter()
            .filter(|(sent, _)| (from..until).contains(sent))
            .map(|(_, took)| took.as_secs_f64() * 1e3)
            .collect();
        times.sort_by(f64::total_cmp);
        let part =
            |percent: usize| times.get((times.len().saturating_sub(1) * percent).div_ceil(100));
        Some(Span {
            answers: times.len(),
            p50_ms: *part(50)?,
            p99_ms: *part(99)?,
            max_ms: *times.last()?,
        })
    }
}

/// Sends requests until `stop` is set. Call it on a thread in the clients' network namespace.
///
/// # Errors
/// When the server cannot be reached at the start.
pub(crate) fn run_clients(
    server: SocketAddr,
    demand: Demand,
    stop: &AtomicBool,
) -> io::Result<Responses> {
    let begun = Instant::now();
    let clients = u32::try_from(CLIENTS).unwrap_or(1);
    let mut clients = (0..clients)
        .map(|number| Client::connect(server, demand, begun, number, INTERVAL * number / clients))
        .collect::<io::Result<Vec<_>>>()?;
    let mut seen = Responses::default();
    let mut stopped: Option<Instant> = None;
    loop {
        if stopped.is_none() && stop.load(Ordering::Relaxed) {
            stopped = Some(Instant::now());
        }
        if stopped.is_none() {
            let now = Instant::now();
            for client in clients.iter_mut().filter(|client| client.is_due(now)) {
                client.ask(&mut seen);
            }
        }
        let waiting = clients.iter().filter(|client| client.waits()).count();
        if stopped.is_some_and(|at| waiting == 0 || at.elapsed() > LAST) {
            seen.unanswered = waiting;
            return Ok(seen);
        }
        wait(&mut clients, &mut seen)?;
    }
}

/// Waits for an answer or for the time of the next request, and reads what has arrived.
fn wait(clients: &mut [Client], seen: &mut Responses) -> io::Result<()> {
    let now = Instant::now();
    let next = clients
        .iter()
        .filter(|client| !client.waits())
        .map(|client| client.next.saturating_duration_since(now))
        .min()
        .unwrap_or(TURN)
        .min(TURN);
    let waiting: Vec<_> = (0..clients.len())
        .filter(|&at| clients.get(at).is_some_and(Client::waits))
        .collect();
    let ready: Vec<usize> = {
        let mut polled: Vec<_> = waiting
            .iter()
            .filter_map(|&at| Some(PollFd::new(&clients.get(at)?.stream, PollFlags::IN)))
            .collect();
        let timeout = Timespec {
            tv_sec: 0,
            tv_nsec: i64::from(next.subsec_nanos()),
        };
        match poll(&mut polled, Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        waiting
            .iter()
            .zip(&polled)
            .filter(|(_, polled)| !polled.revents().is_empty())
            .map(|(&at, _)| at)
            .collect()
    };
    for at in ready {
        if let Some(client) = clients.get_mut(at) {
            client.take(seen);
        }
    }
    Ok(())
}

/// A client and its connection.
#[derive(Debug)]
struct Client {
    server: SocketAddr,
    demand: Demand,
    /// Of the random numbers.
    seed: u64,
    stream: TcpStream,
    /// When it sends the next request, unless it is waiting.
    next: Instant,
    /// The file of the current or the next request.
    file: u64,
    sent: Option<Instant>,
    answer: Vec<u8>,
}

impl Client {
    fn connect(
        server: SocketAddr,
        demand: Demand,
        begun: Instant,
        number: u32,
        offset: Duration,
    ) -> io::Result<Self> {
        Ok(Self {
            server,
            demand,
            seed: u64::from(number) + 1,
            stream: connect(server)?,
            next: begun + offset,
            // Spread over the files, so that any two clients request different ones.
            file: u64::from(number) * 39 % WEB_FILES,
            sent: None,
            answer: Vec::new(),
        })
    }

    fn waits(&self) -> bool {
        self.sent.is_some()
    }

    fn is_due(&self, now: Instant) -> bool {
        !self.waits() && self.next <= now
    }

    fn ask(&mut self, seen: &mut Responses) {
        let request = format!("GET /{} HTTP/1.1\r\nHost: guest\r\n\r\n", self.file);
        let now = Instant::now();
        self.answer.clear();
        self.sent = Some(now);
        self.next = match self.demand {
            // Missed requests are not made up for.
            Demand::AtIntervals => (self.next + INTERVAL).max(now),
            Demand::WithoutPause => now,
        };
        // The request is far smaller than a socket's buffer, so it is sent whole or not at all.
        if let Err(error) = self.stream.write_all(request.as_bytes()) {
            self.fail(seen, &error.to_string());
        }
    }

    /// Reads what has arrived.
    fn take(&mut self, seen: &mut Responses) {
        let mut buffer = [0; 65536];
        loop {
            match self.stream.read(&mut buffer) {
                Ok(0) => return self.fail(seen, "the server closed the connection"),
                Ok(count) => self.answer.extend_from_slice(&buffer[..count]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return self.fail(seen, &error.to_string()),
            }
            match body(&self.answer) {
                Err(reason) => return self.fail(seen, &reason),
                Ok(None) => {}
                Ok(Some(body)) => {
                    let verdict = check(body, self.file);
                    let now = Instant::now();
                    if let Some(sent) = self.sent.take() {
                        seen.answers.push((sent, now - sent));
                    }
                    if let Err(reason) = verdict {
                        seen.errors.push(format!("file {}: {reason}", self.file));
                    }
                    self.file = self.next_file();
                    return;
                }
            }
        }
    }

    fn next_file(&mut self) -> u64 {
        match self.demand {
            Demand::AtIntervals => (self.file + 1) % WEB_FILES,
            Demand::WithoutPause => {
                // Marsaglia's xorshift.
                self.seed ^= self.seed << 13;
                self.seed ^= self.seed >> 7;
                self.seed ^= self.seed << 17;
                self.seed % WEB_FILES
            }
        }
    }

    fn fail(&mut self, seen: &mut Responses, reason: &str) {
        seen.errors.push(reason.to_owned());
        self.sent = None;
        match connect(self.server) {
            Ok(stream) => self.stream = stream,
            // Reported again at the next request.
            Err(error) => seen.errors.push(format!("reconnecting: {error}")),
        }
    }
}

fn connect(server: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&server, CONNECT)?;
    stream.set_nodelay(true)?;
    stream.set_nonblocking(true)?;
    Ok(stream)
}

/// The content of a complete answer; `None` while it is incomplete.
fn body(answer: &[u8]) -> Result<Option<&[u8]>, String> {
    let Some(end) = answer.windows(4).position(|four| four == b"\r\n\r\n") else {
        return match answer.len() {
            0..HEADER_LIMIT => Ok(None),
            _ => Err("the answer's header does not end".to_owned()),
        };
    };
    let header = String::from_utf8_lossy(&answer[..end]);
    let mut lines = header.lines();
    let status = lines.next().unwrap_or_default();
    if !status.starts_with("HTTP/1.1 200 ") {
        return Err(format!("the server answered {status}"));
    }
    let length = lines
        .filter_map(|line| line.split_once(':'))
        .find(|(name, _)| name.eq_ignore_ascii_case("content-length"))
        .and_then(|(_, value)| value.trim().parse::<usize>().ok())
        .ok_or("the answer has no length")?;
    if length != WEB_FILE_BYTES {
        return Err(format!("the answer has {length} bytes"));
    }
    let body = &answer[end + 4..];
    match body.len().cmp(&length) {
        std::cmp::Ordering::Less => Ok(None),
        std::cmp::Ordering::Equal => Ok(Some(body)),
        std::cmp::Ordering::Greater => Err("the answer is longer than announced".to_owned()),
    }
}

/// Checks that the content is that of file `number`: the number first, and last a checksum over all
/// words before it (the step of FNV-1a, word by word).
fn check(body: &[u8], number: u64) -> Result<(), String> {
    let mut words = body
        .chunks_exact(8)
        .filter_map(|word| Some(u64::from_le_bytes(word.try_into().ok()?)));
    let last = words.next_back();
    let mut sum = 0xcbf2_9ce4_8422_2325_u64;
    let mut first = None;
    for word in words {
        first.get_or_insert(word);
        sum = (sum ^ word).wrapping_mul(0x0000_0100_0000_01b3);
    }
    match (first, last) {
        (Some(held), _) if held != number => Err(format!("it is file {held}")),
        (Some(_), Some(wanted)) if wanted == sum => Ok(()),
        _ => Err("its checksum is wrong".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(number: u64) -> Vec<u8> {
        let words = WEB_FILE_BYTES / 8;
        let mut content: Vec<u64> = std::iter::once(number)
            .chain((1..words as u64 - 1).map(|word| word * 0x9e37))
            .collect();
        let sum = content
            .iter()
            .fold(0xcbf2_9ce4_8422_2325, |sum: u64, word| {
                (sum ^ word).wrapping_mul(0x0000_0100_0000_01b3)
            });
        content.push(sum);
        content.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    fn answer(content: &[u8]) -> Vec<u8> {
        let mut answer = format!(
            "HTTP/1.1 200 OK\r\nServer: Apache\r\nContent-Length: {}\r\n\r\n",
            content.len()
        )
        .into_bytes();
        answer.extend_from_slice(content);
        answer
    }

    #[test]
    fn a_file_is_checked_for_number_and_content() {
        let good = file(17);
        assert_eq!(check(&good, 17), Ok(()));
        assert_eq!(check(&good, 18), Err("it is file 17".to_owned()));
        for at in [9, WEB_FILE_BYTES / 2, WEB_FILE_BYTES - 1] {
            let mut bad = good.clone();
            bad[at] ^= 4;
            assert!(check(&bad, 17).is_err(), "byte {at}");
        }
        assert!(
            check(&vec![0; WEB_FILE_BYTES], 0).is_err(),
            "a file of zeros is wrong"
        );
    }

    #[test]
    fn an_answer_is_complete_at_its_last_byte() {
        let whole = answer(&file(3));
        for cut in [0, 10, 60, whole.len() - 1] {
            assert_eq!(body(&whole[..cut]), Ok(None), "cut at {cut}");
        }
        assert_eq!(body(&whole).unwrap().map(<[u8]>::len), Some(WEB_FILE_BYTES));
        let mut more = whole.clone();
        more.push(0);
        assert!(body(&more).is_err());
        assert!(body(b"HTTP/1.1 404 Not Found\r\nContent-Length: 3\r\n\r\nno\n").is_err());
        assert!(body(&answer(b"short")).is_err());
        assert!(body(&[b'x'; 5000]).is_err());
    }

    #[test]
    fn a_span_counts_requests_sent_in_it() {
        let zero = Instant::now();
        let at = |ms| zero + Duration::from_millis(ms);
        let seen = Responses {
            answers: (0..100)
                .map(|n| (at(n * 10), Duration::from_millis(n + 1)))
                .collect(),
            ..Responses::default()
        };
        let span = seen.span(at(0), at(1000)).unwrap();
        assert_eq!(
            (span.answers, span.p99_ms, span.max_ms),
            (100, 100.0, 100.0)
        );
        assert_eq!(seen.span(at(500), at(600)).unwrap().answers, 10);
        assert_eq!(seen.span(at(2000), at(3000)), None);
        // The requests of 0 to 450 ms are answered until 500 ms.
        assert!((seen.per_second(at(0), at(500)) - 92.0).abs() < 1e-9);
    }
}
