//! `--poll`: waiting for a message without sleeping.
//!
//! A thread that sleeps has to be woken, and its core, where it was idle, too.
//! A thread that spins sees the message as soon as it is there, and keeps a
//! core from everybody else for it. Two cores can be too few for that: with a
//! spinning thread on the one and the vCPU on the other, the next to come
//! would wait for a scheduler's tick. So spinning ends where somebody else
//! wants the core: noticed by having lost it. For a while the thread then
//! sleeps like any other, which is also the quicker way in such company: who
//! wakes up is put before who runs, who spins is not.

use std::hint;
use std::io::{self, Read};
use std::time::{Duration, Instant};

use rustix::net::{RecvFlags, recv};

use crate::Stream;
use crate::TICK;
use hikkoshi_linux::Cancel;

/// A gap this long between two looks at the clock: the thread did not have its
/// core meanwhile. Interrupts take less.
const LOST: Duration = Duration::from_micros(200);

/// How long it sleeps then instead of spinning.
const GIVE_WAY: Duration = Duration::from_millis(20);

/// Pauses between two looks at the socket, each some tens of nanoseconds.
const PAUSES: u32 = 8;

/// The spinning of one thread on one socket.
#[derive(Debug, Default)]
pub(crate) struct BusyPoll {
    /// Until then somebody else wants the core.
    sleep_until: Option<Instant>,
}

impl BusyPoll {
    /// Reads what comes next. [`io::ErrorKind::WouldBlock`] after a
    /// [`TICK`] without anything, and when `stop` is set.
    pub(crate) fn read(
        &mut self,
        stream: &Stream,
        buffer: &mut [u8],
        stop: &Cancel,
    ) -> io::Result<usize> {
        let begun = Instant::now();
        let mut last = begun;
        loop {
            if self.sleep_until.is_some_and(|until| last < until) {
                return (&mut &*stream).read(buffer);
            }
            match recv(stream, &mut *buffer, RecvFlags::DONTWAIT) {
                Err(rustix::io::Errno::AGAIN) => {}
                other => return other.map(|(read, _)| read).map_err(Into::into),
            }
            let now = Instant::now();
            if now - last > LOST {
                self.sleep_until = Some(now + GIVE_WAY);
            }
            if now - begun > TICK || stop.is_cancelled() {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            last = now;
            for _ in 0..PAUSES {
                hint::spin_loop();
            }
        }
    }
}
