//! Clients of a guest that serves files: each requests one after the other, at random.

use super::namespace::Namespace;
use crate::LabError;
use hikkoshi_checked_pages::page::{SUM_START, filling, fold};
use hikkoshi_checked_pages::random::Random;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long a client waits for an answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);

/// The files of the guest (`hk.files` and `hk.file_bytes`).
#[derive(Clone, Copy, Debug)]
pub struct Files {
    /// How many.
    pub count: usize,
    /// Bytes of each.
    pub bytes: usize,
}

/// Clients that request files without a pause, each over its own connection, and check every byte.
#[derive(Debug)]
pub struct FileClients {
    stop: Arc<AtomicBool>,
    answers: Arc<AtomicU64>,
    threads: Vec<JoinHandle<io::Result<()>>>,
}

impl FileClients {
    /// Connects so many clients from a namespace, and starts them.
    ///
    /// # Errors
    /// When one cannot connect.
    pub fn start(
        namespace: &Namespace,
        server: SocketAddr,
        clients: u64,
        files: Files,
    ) -> Result<Self, LabError> {
        let failed = |source| LabError::File {
            doing: "connecting to",
            path: server.to_string().into(),
            source,
        };
        let connect = || (0..clients).map(|_| TcpStream::connect(server)).collect();
        let streams: io::Result<Vec<_>> = namespace.run(connect)?;
        let mut started = Self {
            stop: Arc::default(),
            answers: Arc::default(),
            threads: Vec::new(),
        };
        for (seed, stream) in (1..).zip(streams.map_err(failed)?) {
            let (stop, answers) = (Arc::clone(&started.stop), Arc::clone(&started.answers));
            let client = std::thread::spawn(move || {
                let mut random = Random::new(seed);
                let mut stream = BufReader::new(stream);
                stream.get_ref().set_nodelay(true)?;
                stream.get_ref().set_read_timeout(Some(ANSWER_TIMEOUT))?;
                while !stop.load(Ordering::Acquire) {
                    request(&mut stream, random.below(files.count), files.bytes)?;
                    answers.fetch_add(1, Ordering::AcqRel);
                }
                Ok(())
            });
            started.threads.push(client);
        }
        Ok(started)
    }

    /// Answers so far.
    pub fn answers(&self) -> u64 {
        self.answers.load(Ordering::Acquire)
    }

    /// Waits for this many further answers; returns whether they came within `limit`, and no client
    /// has failed.
    pub fn wait_answers(&self, more: u64, limit: Duration) -> bool {
        let wanted = self.answers() + more;
        let deadline = Instant::now() + limit;
        while self.answers() < wanted {
            if Instant::now() > deadline || self.threads.iter().any(JoinHandle::is_finished) {
                return false;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        true
    }

    /// Stops after the current answers.
    ///
    /// # Errors
    /// With the first wrong answer, or broken connection.
    pub fn finish(self) -> io::Result<u64> {
        self.stop.store(true, Ordering::Release);
        let died = |_| io::Error::other("a client panicked");
        for thread in self.threads {
            thread.join().map_err(died)??;
        }
        Ok(self.answers.load(Ordering::Acquire))
    }
}

/// Requests a file, and checks the answer.
fn request(stream: &mut BufReader<TcpStream>, number: usize, bytes: usize) -> io::Result<()> {
    let text = format!("GET /{number} HTTP/1.1\r\nHost: guest\r\n\r\n");
    stream.get_mut().write_all(text.as_bytes())?;
    let mut length = None;
    let mut line = String::new();
    for first in (0..).map(|line| line == 0) {
        line.clear();
        stream.read_line(&mut line)?;
        let line = line.trim_end();
        match line.split_once(": ") {
            _ if first && line == "HTTP/1.1 200 OK" => {}
            _ if first => return Err(wrong(number, &format!("status {line:?}"))),
            Some(("Content-Length", value)) => length = value.parse().ok(),
            Some(_) => {}
            None => break,
        }
    }
    if length != Some(bytes) {
        return Err(wrong(number, &format!("length {length:?}")));
    }
    let mut content = vec![0; bytes];
    stream.read_exact(&mut content)?;
    match first_wrong_word(&content, number) {
        None => Ok(()),
        Some(word) => Err(wrong(number, &format!("content from word {word} on"))),
    }
}

fn wrong(number: usize, what: &str) -> io::Error {
    io::Error::other(format!("file {number}: wrong {what}"))
}

/// The first word that is not that of file `number` (guest/workload/src/web_files.rs).
fn first_wrong_word(content: &[u8], number: usize) -> Option<usize> {
    let number = number as u64;
    let last = content.len() / 8 - 1;
    let (mut next, step) = filling(number, content.len() as u64);
    let mut sum = SUM_START;
    content.chunks_exact(8).enumerate().position(|(at, held)| {
        let wanted = match at {
            0 => number,
            _ if at == last => sum,
            _ => {
                let word = next;
                next = next.wrapping_add(step);
                word
            }
        };
        sum = fold(sum, wanted);
        held != wanted.to_le_bytes()
    })
}
