//! Switching the machine off.

use crate::port;

/// ACPI's PM1a control register, where SeaBIOS puts it on QEMU's `pc` and `q35`.
const POWER_CONTROL: u16 = 0x604;
/// Sleep enable, sleep type 0: soft off.
const SOFT_OFF: u16 = 1 << 13;

/// Switches the machine off; where that has no effect, waits forever.
pub fn off() -> ! {
    // SAFETY: this ends the machine, as intended.
    unsafe { port::write_word(POWER_CONTROL, SOFT_OFF) };
    loop {
        core::hint::spin_loop();
    }
}
