//! A guest with paging of its own. With accessed and dirty flags on in the second stage, every access
//! of the processor to the guest's page tables counts as a write (SDM vol. 3C, "Accessed and Dirty
//! Flags for EPT"), also one that changes nothing. So these pages are in the log, in every form.

use super::log_methods::FORMS;
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
            "a guest with paging of its own, {}",
            pattern.name
        ));
        for (form, name) in FORMS {
            for largest in [Level::Page, Level::Large] {
                let mut machine = Machine::new(host, largest);
                machine.start(form, all);
                guest_program::write_list(&pattern.addresses);
                guest_program::write_directory();
                machine.vcpus[0].vmx.page_by(DIRECTORY);
                machine.prepare_list(0, 0, pattern.addresses.len(), 16);
                machine.finish(0);
                report.check(
                    format_args!(
                        "{name}, {largest:?} leaves: what was written, and the page directory"
                    ),
                    machine.take(all) == expected,
                );
            }
        }
    }
}
