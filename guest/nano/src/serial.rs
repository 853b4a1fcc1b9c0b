//! The first serial port: polled, without interrupts.

use crate::interrupts::yield_now;
use crate::port;
use core::fmt;
use core::sync::atomic::{AtomicBool, Ordering::*};

const DATA: u16 = 0x3f8;
const INTERRUPTS: u16 = DATA + 1;
const FIFO: u16 = DATA + 2;
const LINE_CONTROL: u16 = DATA + 3;
const LINE_STATUS: u16 = DATA + 5;

const RECEIVED: u8 = 1 << 0;
const TRANSMITTER_EMPTY: u8 = 1 << 5;
/// Bytes that the transmitter takes when it is empty.
const FIFO_BYTES: usize = 16;

/// Whether a task prints a line.
static BUSY: AtomicBool = AtomicBool::new(false);

/// The port as a console, for one line of one task.
#[derive(Debug)]
pub struct Serial(());

impl Serial {
    /// Waits until no other task prints.
    pub fn lock() -> Self {
        while BUSY.swap(true, Acquire) {
            yield_now();
        }
        Self(())
    }

    /// Interrupts the line of another task, if one prints: for the last line of the run.
    pub fn take_over() -> Self {
        BUSY.store(true, Relaxed);
        Self(())
    }
}

impl Drop for Serial {
    fn drop(&mut self) {
        BUSY.store(false, Release);
    }
}

/// Switches interrupts off and the queues on.
pub fn initialize() {
    for (register, value) in [(INTERRUPTS, 0), (LINE_CONTROL, 3), (FIFO, 7)] {
        // SAFETY: registers of the serial port, which affect nothing else.
        unsafe { port::write(register, value) };
    }
}

fn status() -> u8 {
    // SAFETY: reading the status affects nothing but the status.
    unsafe { port::read(LINE_STATUS) }
}

/// The next byte that has arrived.
pub fn read() -> Option<u8> {
    if status() & RECEIVED == 0 {
        return None;
    }
    // SAFETY: takes the byte from the port, as intended.
    Some(unsafe { port::read(DATA) })
}

impl fmt::Write for Serial {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for part in text.as_bytes().chunks(FIFO_BYTES) {
            while status() & TRANSMITTER_EMPTY == 0 {
                core::hint::spin_loop();
            }
            for &byte in part {
                // SAFETY: sends the byte; the queue is empty and takes sixteen.
                unsafe { port::write(DATA, byte) };
            }
        }
        Ok(())
    }
}

/// Prints a line, as `println!` does.
#[macro_export]
macro_rules! say {
    ($($part:tt)*) => {
        $crate::serial::print($crate::serial::Serial::lock(), format_args!($($part)*))
    };
}

/// Prints a line.
pub fn print(mut port: Serial, line: fmt::Arguments<'_>) {
    // Writing to the port cannot fail; a failing `Display` only leaves a short line.
    let _ = fmt::write(&mut port, format_args!("{line}\r\n"));
}
