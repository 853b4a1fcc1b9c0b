//! A hypervisor for bare metal that tests `hikkoshi-ept` with the real VMX instructions.
//!
//! See the README beside the sources: how it boots, how to run it, what it says.
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

/// Ends the run with a verdict that no test takes for a success.
fn fail(reason: impl core::fmt::Display) -> ! {
    say!("verdict: FAILED, {reason}");
    port::power_off()
}

/// Where the boot path ends (src/boot/long.rs).
#[unsafe(no_mangle)]
extern "C" fn hypervisor() -> ! {
    say!("boot: 64-bit code runs");
    let host = Host {
        segments: gdt::load(),
        idt: exceptions::load(),
    };
    vmx::operation::enter();
    say!(
        "vmx: on; secondary controls {:#018x}, EPT capabilities {:#x}",
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
    ] {
        check(&mut report, host);
    }
    report.equal(
        "every frame that the crate borrowed came back",
        frame_pool::POOL.lent(),
        0,
    );
    report.verdict();
    port::power_off()
}
