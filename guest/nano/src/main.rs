//! A small kernel that runs the test guest's workload as tasks in ring 3.
//!
//! The README beside the sources describes why it exists and how it boots.
#![no_std]
#![no_main]

mod accounts;
mod apic;
mod async_faults;
mod boot;
mod clock;
mod commands;
mod config;
mod counters;
mod dirty;
mod fault_times;
mod findings;
mod interrupts;
mod kvm_clock;
mod memory;
mod net;
mod options;
mod page_order;
mod port;
mod power;
mod processors;
mod runtime;
mod scan;
mod scheduler;
mod serial;
mod serve;
mod start_info;
mod startup;
mod tasks;
mod verify;
mod walk;
mod worker;
mod workload;

use clock::{Clock, ticks};
use config::Config;
use counters::Scale;
use options::Options;
use processors::PROCESSORS;
use serial::Serial;

/// Ends the run with a line that the lab recognises.
fn fail(reason: impl core::fmt::Display) -> ! {
    // Not after waiting for another task: an exception is reported with interrupts off.
    serial::print(Serial::take_over(), format_args!("failed: {reason}"));
    power::off()
}

/// The end of each processor's boot path (src/boot.rs), in ring 3 with interrupts off.
#[unsafe(no_mangle)]
extern "C" fn start(number: usize) -> ! {
    let processor = &PROCESSORS[number];
    processor.initialize(number);
    if number > 0 {
        startup::join(processor);
    }
    interrupts::fill_table();
    serial::initialize();
    if let Err(reason) = prepare() {
        fail(reason);
    }
    startup::run(processor)
}

/// On the first processor: reads the options, starts the other processors, and prepares the
/// console's task.
fn prepare() -> Result<(), &'static str> {
    let booted = ticks();
    let start = start_info::read().ok_or("QEMU has passed no PVH start information")?;
    let options = match Options::parse(start.command_line) {
        Ok(options) => options,
        Err((name, value)) => fail(format_args!(
            "option hk.{name}={value} on the kernel command line: not for this guest"
        )),
    };
    let clock = Clock::calibrate().ok_or("ACPI's timer does not run")?;
    if !memory::initialize(options.pages(), start.memory_end) {
        return Err("hk.mib is more than the memory");
    }
    config::set(Config {
        options,
        clock,
        scale: Scale::new(clock, options.slow_us),
        booted,
    });
    async_faults::want(options.async_faults);
    startup::start_all(clock, options.slice_us)?;
    tasks::spawn(0, workload::run, 0);
    Ok(())
}
