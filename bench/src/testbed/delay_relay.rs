//! A relay between the source and the destination that delays everything. (The kernels that the
//! bench runs on may not have `netem`.)

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use hikkoshi_lab::Namespace;

use crate::error::BenchError;

/// How often the relay looks whether it is to end.
const TURN: Duration = Duration::from_millis(10);

/// Accepts connections until it is dropped. Its connections end with their peers.
#[derive(Debug)]
pub(crate) struct DelayRelay {
    stop: Arc<AtomicBool>,
}

/// What arrived, and when it is to be passed on.
type Delayed = (Instant, Vec<u8>);

impl DelayRelay {
    /// Listens at `at` in the namespace, and passes each connection on to `to`, `each_way` later.
    ///
    /// # Errors
    /// When it cannot listen.
    pub(super) fn start(
        host: &Namespace,
        at: &'static str,
        to: &'static str,
        each_way: Duration,
    ) -> Result<Self, BenchError> {
        let failed = |source| BenchError::Relay { at, source };
        let listener = host.run(|| TcpListener::bind(at))?.map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let stop = Arc::new(AtomicBool::new(false));
        let (host, stopped) = (host.clone(), Arc::clone(&stop));
        thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                let accepted = match listener.accept() {
                    Ok((stream, _)) => stream,
                    Err(_) => {
                        thread::sleep(TURN);
                        continue;
                    }
                };
                let connected = host.run(|| TcpStream::connect(to));
                // A destination that does not listen is noticed by the source: its connection
                // closes.
                if let Ok(Ok(passed)) = connected {
                    let _ = pass(accepted, passed, each_way);
                }
            }
        });
        Ok(Self { stop })
    }
}

impl Drop for DelayRelay {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// Passes on what arrives at either end of a connection.
fn pass(one: TcpStream, other: TcpStream, delay: Duration) -> io::Result<()> {
    for stream in [&one, &other] {
        stream.set_nonblocking(false)?;
        stream.set_nodelay(true)?;
    }
    one_way(one.try_clone()?, other.try_clone()?, delay);
    one_way(other, one, delay);
    Ok(())
}

fn one_way(from: TcpStream, to: TcpStream, delay: Duration) {
    let (sender, receiver) = channel();
    thread::spawn(move || read(from, delay, &sender));
    thread::spawn(move || write(to, &receiver));
}

fn read(mut from: TcpStream, delay: Duration, sender: &Sender<Delayed>) {
    let mut buffer = vec![0; 1 << 18];
    loop {
        match from.read(&mut buffer) {
            Ok(0) => return,
            Ok(count) => {
                let bytes = buffer.get(..count).unwrap_or_default().to_vec();
                if sender.send((Instant::now() + delay, bytes)).is_err() {
                    return;
                }
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(_) => return,
        }
    }
}

fn write(mut to: TcpStream, receiver: &Receiver<Delayed>) {
    for (due, bytes) in receiver {
        thread::sleep(due.saturating_duration_since(Instant::now()));
        if to.write_all(&bytes).is_err() {
            break;
        }
    }
    // The other end has closed the connection, or this one has.
    let _ = to.shutdown(Shutdown::Both);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_arrives_later_and_in_order() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let pair = || {
            let one = TcpStream::connect(address).unwrap();
            (one, listener.accept().unwrap().0)
        };
        let ((mut near, relay_near), (relay_far, mut far)) = (pair(), pair());
        let delay = Duration::from_millis(20);
        let begun = Instant::now();
        pass(relay_near, relay_far, delay).unwrap();
        for part in [b"one ", b"two "] {
            near.write_all(part).unwrap();
        }
        let mut seen = [0; 8];
        far.read_exact(&mut seen).unwrap();
        assert_eq!(&seen, b"one two ");
        assert!(begun.elapsed() >= delay);
        far.write_all(b"back").unwrap();
        near.read_exact(&mut seen[..4]).unwrap();
        assert!(begun.elapsed() >= 2 * delay);
        drop(far);
        assert_eq!(
            near.read(&mut seen).unwrap(),
            0,
            "the end is passed on, too"
        );
    }
}
