//! A bare-metal hypervisor that tests `hikkoshi-ept` with the real VMX instructions.
//!
//! The README beside the sources describes how it boots, how to run it, and its output.
#![no_std]
#![no_main]

extern crate alloc;

mod boot;
mod checks;
mod cpu;
mod exceptions;
mod frame_pool;
mod gdt;
mod guest_program;
mod machine;
mod memory;
mod port;
mod report;
mod runtime;
mod vmx;
mod write_patterns;

use report::Report;
use vmx::vcpu::Host;

/// Ends the run with a verdict that a test recognises as a failure.
fn fail(reason: impl core::fmt::Display) -> ! {
    say!("verdict: FAILED, {reason}");
    port::power_off()
}

/// The end of the boot path (src/boot/long.rs).
#[unsafe(no_mangle)]
extern "C" fn hypervisor() -> ! {
    say!("boot: 64-bit mode");
    let host = Host {
        segments: gdt::load(),
        idt: exceptions::load(),
    };
    vmx::operation::enter();
    say!(
        "vmx: enabled; secondary controls {:#018x}, EPT capabilities {:#x}",
        vmx::capability::secondary(),
        vmx::capability::ept_capabilities()
    );
    guest_program::load();
    let mut report = Report::default();
    for check in [
        checks::processor::run,
        checks::pml_full::run,
        checks::log_methods::run,
        checks::superpages::run,
        checks::tracked_ranges::run,
        checks::violations::run,
        checks::paging::run,
        checks::vcpus::run,
        checks::views::run,
        checks::measurements::run,
        checks::throughput::run,
    ] {
        check(&mut report, host);
    }
    report.equal(
        "all frames of the crate are released",
        frame_pool::POOL.in_use(),
        0,
    );
    report.verdict();
    port::power_off()
}
