//! `monitor`: what it reports, and its deeper check.

use std::time::Duration;

use error_reporter::Report;
use hikkoshi_qemu::qmp::Monitor;
use serde_json::json;

use super::answer::Answer;
use super::guest::{Found, Guest};
use super::state::State;
use super::table::Action;
use crate::output::streams;

/// How long QEMU may take to answer.
const ANSWER: Duration = Duration::from_secs(10);

/// Reports what is not as usual although the guest is active.
pub(super) fn report(guest: &Guest, action: Action, found: &Found) {
    if action != Action::Monitor && action != Action::MigrateFrom {
        return;
    }
    match found.state {
        State::Arriving | State::Stranded | State::Owing => {
            let missing = guest
                .migrations()
                .iter()
                .find_map(|seen| seen.state.as_ref()?.missing_pages);
            let missing = missing.map_or_else(
                || "how many is not known".to_owned(),
                |pages| format!("{pages} pages"),
            );
            streams::notice(&format!("{}: {missing}", found.state.meaning()));
        }
        State::Paused | State::Interrupted | State::Lost => {
            let why = found.why.as_deref();
            let why = why.map_or_else(String::new, |why| format!(" ({why})"));
            streams::notice(&format!("{}{why}", found.state.meaning()));
        }
        _ => {}
    }
}

/// Checks more of a guest that is active: its disks, and what its node needs to receive guests.
pub(super) fn deep(guest: &Guest) -> Answer {
    if !guest.has_daemon() {
        streams::notice(
            "no hikkoshi daemon runs on this node: no guest can be moved here, and a move to here \
             that is not finished is resumed by the agent only",
        );
    }
    let found = guest.look();
    // An engine has the monitor of one that is being moved.
    if found.state != State::Running {
        return Answer::Success;
    }
    match failed_disk(guest) {
        Ok(None) => Answer::Success,
        Ok(Some(disk)) => {
            streams::ocf_exit_reason(&format!("the guest's disk {disk} has an I/O error"));
            Answer::Failed
        }
        // Another program may have its monitor, which serves one at a time. That the guest runs was
        // found before.
        Err(why) => {
            streams::notice(&format!("asking QEMU for the guest's disks: {why}"));
            Answer::Success
        }
    }
}

/// A disk whose requests fail.
fn failed_disk(guest: &Guest) -> Result<Option<String>, String> {
    let Some(monitor) = guest.monitor()? else {
        return Err("its QEMU has just ended".to_owned());
    };
    let opened = Monitor::open(&*monitor, ANSWER);
    let mut client = opened.map_err(|error| Report::new(&error).to_string())?;
    let disks = client
        .execute("query-block", json!({}))
        .map_err(|error| Report::new(&error).to_string())?;
    let failed = disks.as_array().into_iter().flatten().find(|disk| {
        let status = disk["io-status"].as_str();
        status.is_some_and(|status| status != "ok")
    });
    Ok(failed.map(|disk| {
        let name = disk["device"].as_str().filter(|name| !name.is_empty());
        name.or(disk["qdev"].as_str()).unwrap_or("?").to_owned()
    }))
}
