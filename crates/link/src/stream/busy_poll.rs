//! Busy polling (`--poll`): waits for a message without sleeping.
//!
//! To wake a sleeping thread takes time, and so does an idle core. A spinning thread sees the
//! message at once, but keeps its core busy. Two cores can be too few for that: with a spinning
//! thread on one and the vCPU on the other, the next thread would wait for the scheduler's tick. So
//! a thread stops spinning when it notices that it lost its core to another thread, and sleeps for
//! some time. This is also faster then, because the scheduler prefers a thread that wakes up to one
//! that runs.

use std::hint;
use std::io::{self, Read};
use std::time::{Duration, Instant};

use rustix::net::{RecvFlags, recv};

use crate::Stream;
use crate::TICK;
use hikkoshi_linux::CancelFlag;

/// A gap this long between two clock reads means that the thread lost its core. Interrupts take
/// less time.
const LOST_CORE: Duration = Duration::from_micros(200);

/// How long the thread sleeps then instead of spinning.
const SLEEP: Duration = Duration::from_millis(20);

/// Pauses between two reads of the socket, each some tens of nanoseconds.
const PAUSES: u32 = 8;

/// The busy polling of one thread on one socket.
#[derive(Debug, Default)]
pub(crate) struct BusyPoll {
    /// Until then the thread sleeps in reads, because another thread needs the core.
    sleep_until: Option<Instant>,
}

impl BusyPoll {
    /// Reads the next bytes. Returns [`io::ErrorKind::WouldBlock`] after a [`TICK`] without data,
    /// and when `stop` is set.
    pub(crate) fn read(
        &mut self,
        stream: &Stream,
        buffer: &mut [u8],
        stop: &CancelFlag,
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
            if now - last > LOST_CORE {
                self.sleep_until = Some(now + SLEEP);
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
