//! `stop` of a guest that runs here: it shuts down, or its QEMU is ended.

use std::time::Duration;

use error_reporter::Report;
use hikkoshi_linux::Process;
use hikkoshi_qemu::qmp::{Client, Monitor};
use serde_json::json;

use super::deadline::Deadline;
use super::guest::Guest;
use crate::output::streams;

/// How long a monitor may take to answer.
const ANSWER: Duration = Duration::from_secs(5);

/// How long QEMU may take to end when it was asked to: it writes to its disks.
const QUIT: Duration = Duration::from_secs(10);

/// How often the guest is asked again to shut down: it may not have been able to.
const AGAIN: Duration = Duration::from_secs(10);

/// Asks the guest to shut down and waits, and then ends its QEMU. Fails if QEMU cannot be reached
/// now.
pub(super) fn shut_down(guest: &Guest, deadline: Deadline) -> Result<(), String> {
    let Some(process) = guest.process()? else {
        return Ok(());
    };
    // What is left of the time is for ending QEMU.
    let limit = deadline.earlier(QUIT + Duration::from_secs(5));
    match open(guest) {
        Ok(mut client) => {
            power_down(guest, &mut client, &process, limit);
            quit(&mut client, &process, deadline);
        }
        Err(_) if !process.is_alive() => {}
        // An engine that ends, or another program, has its monitor.
        Err(why) if !limit.is_over() => return Err(why),
        Err(why) => streams::notice(&format!("{why}: its QEMU is killed")),
    }
    if process.is_alive() {
        streams::notice("QEMU has not ended, and is killed");
        process
            .kill()
            .map_err(|error| format!("killing QEMU: {}", Report::new(&error)))?;
    }
    Ok(())
}

fn open(guest: &Guest) -> Result<Client, String> {
    let monitor = guest.monitor()?.ok_or("QEMU has just ended")?;
    let opened = Monitor::open(&*monitor, ANSWER);
    opened.map_err(|error| Report::new(&error).to_string())
}

/// Asks the guest to shut down, and waits until it has, or the time is over.
fn power_down(guest: &Guest, client: &mut Client, process: &Process, limit: Deadline) {
    let limit = limit.within(guest.parameters.shutdown);
    while !limit.is_over() && process.is_alive() {
        match client.execute("query-status", json!({})) {
            // It is paused, or has shut down or crashed.
            Ok(status) if status["running"] != true => return,
            Ok(_) => {}
            Err(_) => return,
        }
        if client.execute("system_powerdown", json!({})).is_err() {
            return;
        }
        let has_stopped = |client: &mut Client| {
            let status = client.execute("query-status", json!({}));
            status.is_ok_and(|status| status["running"] != true)
        };
        limit
            .within(AGAIN)
            .wait(|| !process.is_alive() || has_stopped(client));
    }
}

/// Ends QEMU, which writes what it has of the guest's disks.
fn quit(client: &mut Client, process: &Process, deadline: Deadline) {
    if !process.is_alive() {
        return;
    }
    if let Err(error) = client.execute("quit", json!({}))
        && process.is_alive()
    {
        let error = Report::new(&error).to_string();
        streams::notice(&format!("ending QEMU: {error}"));
        return;
    }
    deadline.within(QUIT).wait(|| !process.is_alive());
}
