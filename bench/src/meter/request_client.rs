//! A client that sends one request after the other over one connection.

use std::io::{self, BufRead, BufReader, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How long the client waits for an answer: longer than a migration pauses a guest.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);

/// When each request was answered.
#[derive(Clone, Debug, Default)]
pub(crate) struct Requests {
    pub(crate) answered: Vec<Instant>,
}

impl Requests {
    /// The number of answers.
    pub(crate) fn count(&self) -> usize {
        self.answered.len()
    }
}

/// Sends numbered lines, at most one in `interval`, each when the one before has been answered.
///
/// # Errors
/// When the connection fails, or an answer is not the one that was expected.
pub(crate) fn run_requests(
    mut stream: TcpStream,
    interval: Duration,
    stop: &AtomicBool,
) -> io::Result<Requests> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
    let mut answers = BufReader::new(stream.try_clone()?);
    let mut requests = Requests::default();
    let mut next = Instant::now();
    let mut answer = String::new();
    while !stop.load(Ordering::Relaxed) {
        let number = requests.count().to_string();
        stream.write_all(format!("{number}\n").as_bytes())?;
        answer.clear();
        answers.read_line(&mut answer)?;
        if answer.trim_end().rsplit(' ').next() != Some(&number) {
            let wrong = format!("the answer to request {number} is {answer:?}");
            return Err(io::Error::other(wrong));
        }
        let now = Instant::now();
        requests.answered.push(now);
        // Without catching up.
        next = next.max(now - interval) + interval;
        std::thread::sleep(next.saturating_duration_since(now));
    }
    Ok(requests)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn a_wrong_answer_is_an_error() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let server = std::thread::spawn(move || {
            let (mut server, _) = listener.accept().unwrap();
            let mut lines = BufReader::new(server.try_clone().unwrap());
            let mut line = String::new();
            for answer in ["17 0\n", "18 0\n"] {
                lines.read_line(&mut line).unwrap();
                server.write_all(answer.as_bytes()).unwrap();
            }
        });
        let outcome = run_requests(stream, Duration::from_millis(1), &AtomicBool::new(false));
        let error = outcome.unwrap_err().to_string();
        assert!(error.contains("request 1 is \"18 0"), "{error}");
        server.join().unwrap();
    }
}
