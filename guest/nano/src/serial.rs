//! The first serial port: polled, without interrupts.

use crate::port;
use core::fmt;

const DATA: u16 = 0x3f8;
const INTERRUPTS: u16 = DATA + 1;
const FIFO: u16 = DATA + 2;
const LINE_CONTROL: u16 = DATA + 3;
const LINE_STATUS: u16 = DATA + 5;

const RECEIVED: u8 = 1 << 0;
const TRANSMITTER_EMPTY: u8 = 1 << 5;
/// Bytes that the transmitter takes when it is empty.
const FIFO_BYTES: usize = 16;

/// The port as a console.
#[derive(Debug)]
pub struct Serial;

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
    ($($part:tt)*) => {{
        // Writing to the port cannot fail; a failing `Display` only leaves a short line.
        let _ = core::fmt::Write::write_fmt(
            &mut $crate::serial::Serial,
            format_args!("{}\r\n", format_args!($($part)*)),
        );
    }};
}
