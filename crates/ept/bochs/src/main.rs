//! A hypervisor for bare metal that tests `hikkoshi-ept` with the real VMX instructions.
//!
//! See the README beside the sources: how it boots, how to run it, what it says.
#![no_std]
#![no_main]

extern crate alloc;

mod boot;
mod checks;
mod cpu;
mod guest;
mod machine;
mod memory;
mod pattern;
mod pool;
mod port;
mod report;
mod runtime;
mod segments;
mod traps;
mod vmx;

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
        segments: segments::load(),
        idt: traps::load(),
    };
    vmx::operation::enter();
    say!(
        "vmx: on; secondary controls {:#018x}, EPT capabilities {:#x}",
        vmx::capability::secondary(),
        vmx::capability::ept_capabilities()
    );
    guest::load();
    let mut report = Report::default();
    for check in [
        checks::processor::run,
        checks::full::run,
        checks::forms::run,
        checks::superpages::run,
        checks::ranges::run,
        checks::violations::run,
        checks::paging::run,
        checks::vcpus::run,
        checks::views::run,
        checks::figures::run,
    ] {
        check(&mut report, host);
    }
    report.equal(
        "every frame that the crate borrowed came back",
        pool::POOL.lent(),
        0,
    );
    report.verdict();
    port::power_off()
}
