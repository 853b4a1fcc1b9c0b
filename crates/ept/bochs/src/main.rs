//! A bare-metal test hypervisor.
#![no_std]
#![no_main]

extern crate alloc;

mod boot;
mod checks;
mod cpu;
mod guest;
mod memory;
mod port;
mod report;
mod runtime;
mod segments;
mod traps;
mod vmx;

/// Ends the run with a verdict that no test takes for a success.
fn fail(reason: impl core::fmt::Display) -> ! {
    say!("verdict: FAILED, {reason}");
    port::power_off()
}

#[unsafe(no_mangle)]
extern "C" fn hypervisor() -> ! {
    say!("boot: 64-bit code runs");
    let host = vmx::vcpu::Host {
        segments: segments::load(),
        idt: traps::load(),
    };
    vmx::operation::enter();
    say!(
        "vmx: on; secondary controls may be {:#010x}, EPT capabilities {:#010x}",
        vmx::capability::allowed_secondary(),
        vmx::capability::ept_capabilities()
    );
    guest::load();
    let mut report = report::Report::default();
    checks::processor::run(&mut report, host);
    report.verdict();
    port::power_off()
}
