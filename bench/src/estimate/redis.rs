//! A client that keeps redis busy.

use std::io::{self, BufRead, BufReader, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use hikkoshi_lab::GuestNetwork;

use crate::error::BenchError;

const PORT: u16 = 6379;

/// Keys that are set, one after the other, and bytes in each: 16 MiB.
const KEYS: usize = 4096;
const VALUE: usize = 4096;

/// How long an answer may take.
const LONG: Duration = Duration::from_secs(60);

/// Sets keys until it is dropped, one request after the other.
#[derive(Debug)]
pub(super) struct RedisClient {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<io::Result<()>>>,
}

impl RedisClient {
    /// Connects to the guest of this network.
    pub(super) fn start(network: &GuestNetwork) -> Result<Self, BenchError> {
        let connect = || TcpStream::connect((GuestNetwork::GUEST, PORT));
        let failed = |source| BenchError::Redis { source };
        let stream = network.client().run(connect)?.map_err(failed)?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::Builder::new()
            .name("redis".to_owned())
            .spawn(move || set_keys(stream, &stopped))
            .map_err(failed)?;
        Ok(Self {
            stop,
            thread: Some(thread),
        })
    }

    /// Ends it. An error: redis did not answer, or not as it should.
    pub(super) fn finish(mut self) -> Result<(), BenchError> {
        self.end().map_err(|source| BenchError::Redis { source })
    }

    fn end(&mut self) -> io::Result<()> {
        self.stop.store(true, Ordering::Relaxed);
        let ended = self.thread.take().map(JoinHandle::join);
        ended.map_or(Ok(()), |ended| {
            ended.unwrap_or_else(|_| Err(io::Error::other("the client panicked")))
        })
    }
}

impl Drop for RedisClient {
    fn drop(&mut self) {
        // After an error of the bench, that one is reported.
        let _ = self.end();
    }
}

fn set_keys(mut stream: TcpStream, stop: &AtomicBool) -> io::Result<()> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(LONG))?;
    let mut answers = BufReader::new(stream.try_clone()?);
    let mut answer = String::new();
    for number in 0_usize.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let key = format!("key:{}", number % KEYS);
        let value = format!("{number:08}").repeat(VALUE / 8);
        let request = format!(
            "*3\r\n$3\r\nSET\r\n${}\r\n{key}\r\n${}\r\n{value}\r\n",
            key.len(),
            value.len()
        );
        stream.write_all(request.as_bytes())?;
        answer.clear();
        answers.read_line(&mut answer)?;
        if answer != "+OK\r\n" {
            return Err(io::Error::other(format!("redis answered {answer:?}")));
        }
    }
    Ok(())
}
