//! A guest with paging enabled. With accessed and dirty flags in the second stage, every access of
//! the processor to the guest's page tables counts as a write (SDM vol. 3C, "Accessed and Dirty
//! Flags for EPT"), even if it changes nothing. So these pages are logged by every method.

use super::log_methods::LOG_METHODS;
use crate::guest_program::{self, DIRECTORY};
use crate::machine::{FRAMES, Machine, frames};
use crate::report::Report;
use crate::vmx::vcpu::Host;
use crate::write_patterns;
use hikkoshi_ept::Level;

/// Runs the checks.
pub fn run(report: &mut Report, host: Host) {
    let all = frames(0, FRAMES);
    for pattern in write_patterns::all().iter().step_by(2).take(2) {
        let written = pattern.frames();
        let mut expected = written.clone();
        expected.insert(DIRECTORY >> 12);
        report.part(format_args!(
            "a guest with paging enabled, {}",
            pattern.name
        ));
        for (method, name) in LOG_METHODS {
            for max_level in [Level::Size4K, Level::Size2M] {
                let mut machine = Machine::new(host, max_level);
                machine.start(method, all);
                guest_program::write_list(&pattern.addresses);
                guest_program::write_directory();
                machine.vcpus[0].vmx.enable_paging(DIRECTORY);
                machine.prepare_list(0, 0, pattern.addresses.len(), 16);
                machine.finish(0);
                report.check(
                    format_args!(
                        "{name}, {max_level} leaves: the log is the pages written and the page directory"
                    ),
                    machine.take(all) == expected,
                );
            }
        }
    }
}
