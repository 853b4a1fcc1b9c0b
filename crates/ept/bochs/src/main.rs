//! A bare-metal test hypervisor.
#![no_std]
#![no_main]

mod boot;
mod port;
mod runtime;

/// Ends the run with a verdict that no test takes for a success.
fn fail(reason: impl core::fmt::Display) -> ! {
    say!("verdict: FAILED: {reason}");
    port::power_off()
}

#[unsafe(no_mangle)]
extern "C" fn hypervisor() -> ! {
    say!("boot: 64-bit code runs");
    port::power_off()
}
