//! `start`: the guest boots from its disks.

use std::process::Command;
use std::time::Duration;

use error_reporter::Report;
use hikkoshi_qemu::GuestState;
use hikkoshi_qemu::qmp::Monitor;

use super::deadline::Deadline;
use super::engines::output;
use super::guest::Guest;
use super::parameters::Machine;
use crate::commands::operator_file;
use crate::machines::{self, BootedMachine, WaitingMark};

/// How long QEMU may take to answer.
const ANSWER: Duration = Duration::from_secs(10);

/// Lets the guest run, whose QEMU was started.
pub(super) fn run(guest: &Guest) -> Result<(), String> {
    let doing = |error: &dyn std::error::Error| {
        let error = Report::new(error);
        format!("letting the guest run: {error}")
    };
    let monitor = guest.monitor()?.ok_or("its QEMU has just ended")?;
    let opened = Monitor::open(&*monitor, ANSWER);
    let mut client = opened.map_err(|error| doing(&error))?;
    monitor.resume(&mut client).map_err(|error| doing(&error))
}

/// Starts its QEMU, and waits until that can be asked.
pub(super) fn boot(guest: &Guest, deadline: Deadline) -> Result<(), String> {
    if let Some(node) = guest.cluster.other_destination(&guest.parameters.name)? {
        return Err(format!(
            "a move of the guest to {node} was begun, and its end is not known: it may run there \
             without Pacemaker's knowledge. A start on {node} takes it over, or ends it"
        ));
    }
    match &guest.parameters.machine {
        Machine::Template(template) => {
            let text = operator_file::read(template)
                .map_err(|why| format!("the template {}: {why}", template.display()))?;
            let name = &guest.parameters.name;
            machines::make_folder(guest.run()).map_err(|error| Report::new(&error).to_string())?;
            // A receiver whose machine has ended may still be ending.
            deadline.wait(|| WaitingMark::lock(guest.run(), name).is_ok());
            guest.note_starting(true)?;
            let mut machine = BootedMachine::start(guest.run(), name, &text)?;
            let answers = deadline.wait(|| machine.has_ended() || machine.is_served());
            guest.note_starting(false)?;
            if machine.has_ended() || !answers {
                let why = machine.why_not();
                machine.end();
                return Err(format!("starting the guest: {why}"));
            }
            Ok(())
        }
        Machine::Domain { file, uri } => {
            let mut virsh = Command::new("virsh");
            virsh
                .args(["--quiet", "--connect", uri, "create"])
                .arg(file);
            let output =
                output(virsh).map_err(|error| format!("virsh: {}", Report::new(&error)))?;
            if !output.status.success() {
                let said = String::from_utf8_lossy(&output.stderr);
                return Err(format!("starting the guest: {}", said.trim()));
            }
            let answers = || {
                let monitor = guest.monitor();
                matches!(monitor, Ok(Some(monitor)) if GuestState::query(&*monitor).is_ok())
            };
            match deadline.wait(answers) {
                true => Ok(()),
                false => Err("the domain was created and does not answer".to_owned()),
            }
        }
    }
}
