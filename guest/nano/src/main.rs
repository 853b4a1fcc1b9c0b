//! A small kernel that runs the test guest's workload in ring 3.
//!
//! The README beside the sources describes why it exists and how it boots.
#![no_std]
#![no_main]

mod boot;
mod clock;
mod commands;
mod exceptions;
mod kvm_clock;
mod latency;
mod memory;
mod options;
mod port;
mod power;
mod runtime;
mod serial;
mod start_info;
mod verify;
mod workload;

/// Ends the run with a line that the lab recognises.
fn fail(reason: impl core::fmt::Display) -> ! {
    say!("failed: {reason}");
    power::off()
}

/// The program in ring 3; the end of the boot path (src/boot.rs).
#[unsafe(no_mangle)]
extern "C" fn task() -> ! {
    exceptions::fill_table();
    serial::initialize();
    if let Err(reason) = workload::run() {
        fail(reason);
    }
    power::off()
}
