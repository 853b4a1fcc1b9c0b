//! A TCP connection, between the task that serves it and the network's task.
//!
//! The two share rings of bytes and an event in each direction, and no lock: a task that waits for
//! a page of what it sends, or of a ring, waits alone.

use super::network_task::WORK;
use super::ring::Ring;
use crate::tasks::Event;
use core::fmt;
use core::ptr::with_exposed_provenance;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering::*, fence};
use hikkoshi_checked_pages::page::PAGE_SIZE;
use smoltcp::socket::tcp;

/// Bytes from the client that wait for the task.
pub const INPUT: usize = 2048;
/// Bytes from the task that wait for the TCP socket.
pub const OUTPUT: usize = 16384;
/// Bytes that have been sent, or are to be sent next, and are not acknowledged.
pub const SEND: usize = 16384;
/// A task that waits for room is woken when there is so much.
const ROOM: usize = OUTPUT / 2;

/// No client is connected.
const FREE: u32 = 0;
/// A client is connected.
const OPEN: u32 = 1;
/// The client sends no more.
const ENDED: u32 = 2;
/// The task sends no more.
const FINISHED: u32 = 3;

/// The connection is broken.
#[derive(Clone, Copy, Debug)]
pub struct Broken;

/// A connection, or the place for one.
#[derive(Debug)]
pub struct Connection {
    phase: AtomicU32,
    broken: AtomicBool,
    input: Ring<INPUT>,
    output: Ring<OUTPUT>,
    /// The task waits for room.
    is_full: AtomicBool,
    /// The address of the TCP socket's buffer of [`SEND`] bytes.
    send_buffer: AtomicUsize,
    /// For the task: the phase has changed, bytes have arrived, or there is room for more.
    changed: Event,
}

impl Connection {
    /// No connection.
    pub const fn new() -> Self {
        Self {
            phase: AtomicU32::new(FREE),
            broken: AtomicBool::new(false),
            input: Ring::new(),
            output: Ring::new(),
            is_full: AtomicBool::new(false),
            send_buffer: AtomicUsize::new(0),
            changed: Event::new(),
        }
    }

    /// Gives it memory, once: that of its input, of its output, and of the socket's buffer.
    pub fn set_memory(&self, input: usize, output: usize, send_buffer: usize) {
        self.input.set_memory(input);
        self.output.set_memory(output);
        self.send_buffer.store(send_buffer, Relaxed);
    }

    /// Whether a client is connected.
    pub fn is_used(&self) -> bool {
        self.phase.load(Relaxed) != FREE
    }
}

struct Text(&'static Connection);

impl fmt::Write for Text {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.write(text.as_bytes()).map_err(|_| fmt::Error)
    }
}

/// What its task uses.
impl Connection {
    /// Waits until `ready` returns something.
    fn wait<T>(&'static self, ready: impl Fn() -> Option<T>) -> T {
        loop {
            let seen = self.changed.count();
            if let Some(value) = ready() {
                return value;
            }
            self.changed.wait(seen);
        }
    }

    /// Waits for a client.
    pub fn accept(&'static self) {
        self.wait(|| matches!(self.phase.load(Acquire), OPEN | ENDED).then_some(()));
    }

    /// Waits for bytes, and takes them; none: the client sends no more.
    pub fn read(&'static self, into: &mut [u8]) -> usize {
        self.wait(|| {
            // In this order: the last bytes come before the end.
            let ended = self.phase.load(Acquire) != OPEN;
            (self.input.filled() > 0 || ended).then_some(())
        });
        // SAFETY: only the connection's task reads it.
        let count = unsafe {
            self.input.read(|bytes| {
                let count = bytes.len().min(into.len());
                into[..count].copy_from_slice(&bytes[..count]);
                count
            })
        };
        // Between taking the bytes and looking whether there was no room, as in `receive`.
        fence(SeqCst);
        if self.input.room() <= count {
            WORK.notify();
        }
        count
    }

    /// Sends bytes; waits for room.
    pub fn write(&'static self, mut bytes: &[u8]) -> Result<(), Broken> {
        while !bytes.is_empty() {
            if self.output.room() == 0 {
                WORK.notify();
                self.wait(|| {
                    self.is_full.store(true, SeqCst);
                    fence(SeqCst);
                    let broken = self.broken.load(Acquire);
                    (self.output.room() > 0 || broken).then_some(())
                });
            }
            if self.broken.load(Acquire) {
                return Err(Broken);
            }
            self.touch_send_buffer();
            // SAFETY: only the connection's task writes it.
            let count = unsafe {
                self.output.write(|room| {
                    let count = room.len().min(bytes.len());
                    room[..count].copy_from_slice(&bytes[..count]);
                    count
                })
            };
            bytes = &bytes[count..];
        }
        Ok(())
    }

    /// Accesses each page of the socket's buffer. If one is missing, this task waits for it, and
    /// not the network's, which is about to write there.
    fn touch_send_buffer(&self) {
        let start = self.send_buffer.load(Relaxed);
        for page in (0..SEND).step_by(PAGE_SIZE) {
            // SAFETY: within the buffer. The network's task may write there. The value is not
            // used, and the compiler must make the access, because it is volatile.
            unsafe { with_exposed_provenance::<u8>(start + page).read_volatile() };
        }
    }

    /// Sends text.
    pub fn write_text(&'static self, text: fmt::Arguments<'_>) -> Result<(), Broken> {
        fmt::write(&mut Text(self), text).map_err(|_| Broken)
    }

    /// Lets the network's task send what has been written.
    pub fn flush(&'static self) {
        WORK.notify();
    }

    /// Ends the connection, after everything has been sent.
    pub fn finish(&'static self) {
        self.phase.store(FINISHED, Release);
        WORK.notify();
    }
}

/// What the network's task uses.
impl Connection {
    /// Moves bytes between the rings and the socket, and follows its state. Returns whether
    /// anything has been moved.
    pub fn exchange(&self, socket: &mut tcp::Socket<'_>, port: u16) -> bool {
        match self.phase.load(Acquire) {
            FREE => {
                if socket.may_send() {
                    self.input.clear();
                    self.output.clear();
                    self.broken.store(false, Relaxed);
                    self.phase.store(OPEN, Release);
                    self.receive(socket);
                    self.changed.notify();
                    return true;
                }
                if !socket.is_open() {
                    // It is closed, and the port is not 0, so this cannot fail.
                    let _ = socket.listen(port);
                }
                false
            }
            FINISHED => {
                let sent = self.send(socket);
                self.end(socket);
                sent
            }
            phase => {
                let received = self.receive(socket);
                let sent = self.send(socket);
                if !socket.may_send() && !self.broken.swap(true, SeqCst) {
                    self.changed.notify();
                }
                let ended = socket.recv_queue() == 0 && !socket.may_recv();
                if ended && phase == OPEN {
                    // Its task may have finished meanwhile.
                    let _ = self.phase.compare_exchange(OPEN, ENDED, AcqRel, Relaxed);
                    self.changed.notify();
                }
                received || sent
            }
        }
    }

    fn receive(&self, socket: &mut tcp::Socket<'_>) -> bool {
        let mut moved = false;
        while socket.can_recv() {
            // Between writing the bytes before and looking for room: if there is none, the task
            // takes the bytes later, and then sees that the ring was full.
            fence(SeqCst);
            if self.input.room() == 0 {
                break;
            }
            // SAFETY: only the network's task writes it.
            let count = unsafe {
                self.input
                    .write(|room| socket.recv_slice(room).unwrap_or(0))
            };
            if count == 0 {
                break;
            }
            moved = true;
        }
        if moved {
            self.changed.notify();
        }
        moved
    }

    fn send(&self, socket: &mut tcp::Socket<'_>) -> bool {
        let before = self.output.room();
        while socket.can_send() && self.output.filled() > 0 {
            // SAFETY: only the network's task reads it.
            let count = unsafe {
                self.output
                    .read(|bytes| socket.send_slice(bytes).unwrap_or(0))
            };
            if count == 0 {
                break;
            }
        }
        let room = self.output.room();
        fence(SeqCst);
        if room >= ROOM && self.is_full.swap(false, SeqCst) {
            self.changed.notify();
        }
        room > before
    }

    /// The task has finished: closes the socket. When it is closed, the place is free. A client
    /// that has been told the end is not waited for.
    fn end(&self, socket: &mut tcp::Socket<'_>) {
        if self.output.filled() == 0 && socket.may_send() {
            socket.close();
        }
        let closed = matches!(
            socket.state(),
            tcp::State::Closed | tcp::State::TimeWait | tcp::State::FinWait2
        );
        if closed {
            socket.abort();
            self.phase.store(FREE, Release);
        }
    }
}
