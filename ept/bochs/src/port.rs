//! The two output ports: bytes written to 0xE9 appear on Bochs's standard output, and the word
//! "Shutdown" written to 0x8900 ends Bochs.

use core::fmt;

/// Writes one byte to an I/O port.
///
/// # Safety
///
/// A device may react in any way; the effect of the port must be known.
pub unsafe fn write_port(port: u16, byte: u8) {
    // SAFETY: an OUT accesses no memory and no flags; the caller guarantees the effect on the
    // device.
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
        // Printing to a port cannot fail; a failing `Display` only leaves a short line.
        let _ = core::fmt::Write::write_fmt(&mut $crate::port::Console, format_args!("{}\n", format_args!($($part)*)));
    }};
}

/// Ends the emulator; on a machine without such a port, stops the processor.
pub fn power_off() -> ! {
    for byte in *b"Shutdown" {
        // SAFETY: this port only collects the word, and ends Bochs when it is complete.
        unsafe { write_port(0x8900, byte) };
    }
    loop {
        // SAFETY: interrupts are masked permanently: this stops the processor, as intended.
        unsafe { core::arch::asm!("cli", "hlt", options(nomem, nostack)) };
    }
}
