//! Where a direction of a connection goes: to a socket, at once or later.

use std::io::{self, Write};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::socket::RelaySocket;

/// Bytes, and when they are to be passed on.
type Delayed = (Instant, Vec<u8>);

#[derive(Debug)]
pub(super) enum Outlet<'a> {
    Direct(&'a RelaySocket),
    /// A thread of its own writes, so that what follows is read meanwhile.
    Delayed {
        delay: Duration,
        sender: Sender<Delayed>,
        writer: JoinHandle<io::Result<()>>,
    },
}

impl<'a> Outlet<'a> {
    pub(super) fn new(to: &'a RelaySocket, delay: Duration) -> io::Result<Self> {
        if delay.is_zero() {
            return Ok(Self::Direct(to));
        }
        let (sender, receiver) = channel();
        let to = to.try_clone()?;
        Ok(Self::Delayed {
            delay,
            sender,
            writer: thread::spawn(move || write(&to, &receiver)),
        })
    }

    pub(super) fn pass_on(&self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::Direct(to) => (&mut &**to).write_all(bytes),
            // The thread ends earlier only if it cannot write.
            Self::Delayed { delay, sender, .. } => sender
                .send((Instant::now() + *delay, bytes.to_vec()))
                .map_err(|_| io::ErrorKind::BrokenPipe.into()),
        }
    }

    /// Waits until everything was passed on.
    pub(super) fn finish(self) -> io::Result<()> {
        match self {
            Self::Direct(_) => Ok(()),
            Self::Delayed { sender, writer, .. } => {
                drop(sender);
                let written = writer.join();
                written.unwrap_or_else(|_| Err(io::Error::other("the writing thread panicked")))
            }
        }
    }
}

fn write(mut to: &RelaySocket, receiver: &Receiver<Delayed>) -> io::Result<()> {
    for (due, bytes) in receiver {
        thread::sleep(due.saturating_duration_since(Instant::now()));
        to.write_all(&bytes)?;
    }
    Ok(())
}
