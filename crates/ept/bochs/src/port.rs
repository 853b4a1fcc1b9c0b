//! The two ports the program speaks by: what is written to 0xE9 appears on Bochs's standard output,
//! and the word "Shutdown" written to 0x8900 ends Bochs.

use core::fmt;

/// Writes one byte to an I/O port.
///
/// # Safety
///
/// A device may answer in any way; the port must be one whose effect is known.
pub unsafe fn write_port(port: u16, byte: u8) {
    // SAFETY: an OUT touches no memory and no flags; the caller vouches for the device.
    unsafe {
        core::arch::asm!("out dx, al", in("dx") port, in("al") byte,
            options(nomem, nostack, preserves_flags));
    }
}

/// The console of the emulator.
#[derive(Debug)]
pub struct Console;

impl fmt::Write for Console {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for byte in text.bytes() {
            // SAFETY: port 0xE9 prints the byte in Bochs and is unused on other machines.
            unsafe { write_port(0xe9, byte) };
        }
        Ok(())
    }
}

/// Prints a line, as `println!` does.
#[macro_export]
macro_rules! say {
    ($($part:tt)*) => {{
        // Printing to a port cannot fail; a `Display` that fails leaves a short line.
        let _ = core::fmt::Write::write_fmt(&mut $crate::port::Console, format_args!("{}\n", format_args!($($part)*)));
    }};
}

/// Ends the emulator; on a machine that has no such port, stops the processor.
pub fn power_off() -> ! {
    for byte in *b"Shutdown" {
        // SAFETY: this port only collects the word, and ends Bochs when it is whole.
        unsafe { write_port(0x8900, byte) };
    }
    loop {
        // SAFETY: interrupts are masked for good: this stops the processor, which is meant.
        unsafe { core::arch::asm!("cli", "hlt", options(nomem, nostack)) };
    }
}
