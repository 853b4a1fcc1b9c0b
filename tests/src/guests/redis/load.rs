//! Requests to redis one after the other; each answer is known in advance.

use super::client::{Client, Reply};
use crate::LONG;
use hikkoshi_lab::GuestNetwork;
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const PORT: u16 = 6379;
/// Keys of each kind.
const KEYS: usize = 500;

/// A client that sends requests continuously over one connection, and checks each answer. It is the
/// only one, so the answer follows from what redis has confirmed before.
#[derive(Debug)]
pub struct RedisLoad {
    stop: Arc<AtomicBool>,
    answers: Arc<AtomicU64>,
    thread: JoinHandle<Checked>,
}

/// The connection, and what redis has confirmed.
#[derive(Debug)]
struct Checked {
    client: Client,
    counts: Vec<i64>,
    /// How often each value was set.
    generations: Vec<u64>,
    longest: Duration,
}

impl RedisLoad {
    /// Connects to the guest of this network.
    ///
    /// # Panics
    /// When it does not answer.
    pub fn start(network: &GuestNetwork) -> Self {
        let connect = || TcpStream::connect((GuestNetwork::GUEST, PORT)).unwrap();
        let stream = network.client().run(connect).unwrap();
        let mut checked = Checked {
            client: Client::new(stream).unwrap(),
            counts: vec![0; KEYS],
            generations: vec![0; KEYS],
            longest: Duration::ZERO,
        };
        let (stop, answers) = (
            Arc::new(AtomicBool::new(false)),
            Arc::new(AtomicU64::new(0)),
        );
        let (stopped, count) = (Arc::clone(&stop), Arc::clone(&answers));
        let thread = std::thread::spawn(move || {
            for number in 0.. {
                if stopped.load(Ordering::Acquire) {
                    break;
                }
                checked.request(number);
                count.fetch_add(1, Ordering::AcqRel);
            }
            checked
        });
        Self {
            stop,
            answers,
            thread,
        }
    }

    /// Waits for so many further answers.
    ///
    /// # Panics
    /// When they do not arrive, or one was wrong.
    pub fn wait_answers(&self, more: u64) {
        let wanted = self.answers.load(Ordering::Acquire) + more;
        let deadline = Instant::now() + LONG;
        while self.answers.load(Ordering::Acquire) < wanted {
            assert!(Instant::now() < deadline, "no answer on the connection");
            assert!(!self.thread.is_finished(), "the client has stopped");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Stops the requests, and checks all keys: in redis's memory, and again after it has read them
    /// from its log. Returns the longest response time.
    ///
    /// # Panics
    /// When an answer is or was wrong.
    pub fn finish(self) -> Duration {
        self.stop.store(true, Ordering::Release);
        let mut checked = self.thread.join().unwrap();
        checked.check_all("memory");
        checked.expect(&[b"DEBUG", b"LOADAOF"], &Reply::Status("OK".to_owned()));
        checked.check_all("the log");
        checked.longest
    }
}

impl Checked {
    fn request(&mut self, number: usize) {
        // Every key, in an order that jumps: 7919 is prime.
        let key = number.wrapping_mul(7919) % KEYS;
        let asked = Instant::now();
        match number % 3 {
            0 => {
                self.counts[key] += 1;
                let counted = Reply::Integer(self.counts[key]);
                self.expect(&[b"INCR", &name("count", key)], &counted);
            }
            1 => {
                self.generations[key] += 1;
                let value = value(key, self.generations[key]);
                let set = Reply::Status("OK".to_owned());
                self.expect(&[b"SET", &name("value", key), &value], &set);
            }
            _ => self.check_value(key, "memory"),
        }
        self.longest = self.longest.max(asked.elapsed());
    }

    fn check_all(&mut self, what: &str) {
        for key in 0..KEYS {
            self.check_value(key, what);
            let count = self.counts[key];
            let count = (count > 0).then(|| count.to_string().into_bytes());
            self.expect(&[b"GET", &name("count", key)], &Reply::Bulk(count));
        }
    }

    fn check_value(&mut self, key: usize, what: &str) {
        let generation = self.generations[key];
        let wanted = (generation > 0).then(|| value(key, generation));
        let answer = self.client.command(&[b"GET", &name("value", key)]).unwrap();
        assert_eq!(answer, Reply::Bulk(wanted), "key {key} in {what}");
    }

    fn expect(&mut self, words: &[&[u8]], wanted: &Reply) {
        let answer = self.client.command(words).unwrap();
        let command = String::from_utf8_lossy(words[0]);
        assert_eq!(&answer, wanted, "{command}");
    }
}

fn name(kind: &str, key: usize) -> Vec<u8> {
    format!("{kind}:{key}").into_bytes()
}

/// About 1 KiB that follows from key and generation.
fn value(key: usize, generation: u64) -> Vec<u8> {
    format!("{key}.{generation} ").repeat(128).into_bytes()
}
