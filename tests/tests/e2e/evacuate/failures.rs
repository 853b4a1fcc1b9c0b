//! Evacuations in which something fails.
#![allow(clippy::unwrap_used)] // a test's failure is the message

use super::{Evacuation, run};
use hikkoshi_status::EvacuationStage;
use hikkoshi_tests::{KernelFeature, Program, Relay};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::path::Path;

/// Slow enough that a move of these guests takes some seconds.
const SLOW: [&str; 2] = ["--bandwidth", "8M"];

/// One host admits one of the guests only, and no host the third one.
#[test]
#[ignore = "three guests: make test-evacuate"]
fn a_guest_that_is_refused_goes_elsewhere_or_stays() {
    let mut evacuation = Evacuation::start(&["db", "web-one", "web-two"], 0);
    evacuation.start_host(0, "web-*", None);
    evacuation.start_host(1, "web-two", None);
    let addresses = evacuation.addresses();
    let exit = run(evacuation.command(&addresses, &["--plan"]), 1);
    assert!(exit.stdout.contains("stays        db: "), "{exit:?}");
    run(evacuation.command(&addresses, &[]), 1);
    let result = evacuation.result();
    assert_eq!(result["guests"][0]["outcome"], "stays", "{result}");
    let stays = evacuation.guests.remove("db").unwrap();
    assert_eq!(stays.source.status().unwrap(), "running");
    for guest in result["guests"].as_array().unwrap().iter().skip(1) {
        assert_eq!(guest["outcome"], "moved", "{result}");
        let text = |member: &str| guest[member].as_str().unwrap().to_owned();
        evacuation.assert_moved(&text("guest"), &text("to"));
    }
}

/// Kills each process with this run folder in its command line: the daemon, its receivers, and what
/// they have started.
fn kill_host(run: &Path) {
    let run = run.to_str().unwrap();
    for entry in fs::read_dir("/proc").unwrap() {
        let path = entry.unwrap().path();
        let Ok(words) = fs::read(path.join("cmdline")) else {
            continue;
        };
        let pid = path
            .file_name()
            .and_then(|name| name.to_str()?.parse().ok());
        if String::from_utf8_lossy(&words).contains(run)
            && let Some(pid) = pid.and_then(Pid::from_raw)
        {
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}

/// The daemon, its receiver and its QEMU are killed while the guest is moved there by pre-copy.
#[test]
#[ignore = "several hosts: make test-evacuate"]
fn a_destination_that_is_killed_is_replaced() {
    let mut evacuation = Evacuation::start(&["web"], 2);
    let [first, second] = evacuation.addresses()[..] else {
        panic!("two hosts");
    };
    let (first, second) = (first.to_owned(), second.to_owned());
    let more = [&SLOW[..], &["--mode", "precopy"]].concat();
    let command = evacuation.command(&[&first, &second], &more);
    let mut program = Program::start("evacuate", command);
    let began = program.wait_stderr("web: to ");
    let (killed, other) = match began.contains(&first) {
        true => (0, second),
        false => (1, first),
    };
    let host = &evacuation.hosts[killed];
    host.daemon
        .program
        .wait_stderr("web: hikkoshi: a guest arrives");
    kill_host(&host.run);
    program.wait().assert(0, &[]);
    let places = evacuation.assert_all_moved();
    assert_eq!(places["web"], other);
}

/// The line to one host is cut for good while the guest is moved there.
#[test]
#[ignore = "several hosts: make test-evacuate"]
fn a_line_that_is_lost_is_avoided() {
    let mut evacuation = Evacuation::start(&["web"], 0);
    // The host's name, if it is reached by a unix socket.
    evacuation.start_host(0, "*", Some("localhost"));
    evacuation.start_host(1, "*", None);
    let [first, second] = evacuation.addresses()[..] else {
        panic!("two hosts");
    };
    let second = second.to_owned();
    let at = evacuation.env.folder().join("relay");
    let relay = Relay::start(Some(&at), first, true, None, None);
    // The first one that is named.
    let to = [relay.address(), second.as_str()];
    let more = [&SLOW[..], &["--mode", "precopy"]].concat();
    let command = evacuation.command(&to, &more);
    let mut program = Program::start("evacuate", command);
    program.wait_stderr("web: to ");
    relay.cut();
    program.wait().assert(0, &[]);
    let places = evacuation.assert_all_moved();
    assert_eq!(places["web"], second);
}

/// One guest is handed over and waits for its pages, the other one has not begun.
#[test]
#[ignore = "two guests: make test-evacuate"]
fn ctrl_c_finishes_what_is_handed_over_and_leaves_the_rest() {
    let mut evacuation = Evacuation::start(&["web-one", "web-two"], 1);
    let more = [
        "--mode",
        "postcopy",
        "--at-once",
        "1",
        "--migrate-option=--background-delay=3000",
    ];
    let command = evacuation.command(&evacuation.addresses(), &more);
    let mut program = Program::start("evacuate", command);
    let begun = program.wait_stderr(": to ");
    let (moved, stays) = match begun.contains("web-one") {
        true => ("web-one", "web-two"),
        false => ("web-two", "web-one"),
    };
    let host = &evacuation.hosts[0].daemon;
    host.program
        .wait_stderr(&format!("{moved}: hikkoshi: the guest runs here now"));
    program.interrupt();
    program.wait_stderr("cancelled: ");
    program.wait().assert(1, &[]);
    let result = evacuation.result();
    let guest = |name: &str| {
        let mut all = result["guests"].as_array().unwrap().iter();
        all.find(|guest| guest["guest"] == name).unwrap().clone()
    };
    assert_eq!(guest(moved)["outcome"], "moved", "{result}");
    assert_eq!(guest(stays)["outcome"], "stays", "{result}");
    assert_eq!(evacuation.guests[stays].source.status().unwrap(), "running");

    // The same command again moves the rest.
    run(evacuation.command(&evacuation.addresses(), &more), 0);
    evacuation.assert_no_journal();
    evacuation.assert_all_moved();
}

/// The command is killed while a guest is moved, which goes on.
#[test]
#[ignore = "two guests: make test-evacuate"]
fn an_evacuation_that_was_killed_is_continued() {
    let mut evacuation = Evacuation::start(&["web-one", "web-two"], 1);
    let more = [&SLOW[..], &["--at-once", "1"]].concat();
    let command = evacuation.command(&evacuation.addresses(), &more);
    let mut program = Program::start("evacuate", command);
    program.wait_stderr(": to ");
    program.kill();
    let journal = evacuation.journal().unwrap();
    let mut guests = journal.guests.values();
    assert!(guests.any(|guest| guest.stage == EvacuationStage::Moving));
    let command = evacuation.command(&evacuation.addresses(), &more);
    let exit = run(command, 0);
    assert!(
        exit.stderr.contains("of an earlier run is finished first"),
        "{exit:?}"
    );
    evacuation.assert_no_journal();
    evacuation.assert_all_moved();
}

/// Without a dirty log nothing is planned, and nothing moves.
#[test]
#[ignore = "a guest: make test-evacuate"]
fn a_kernel_without_a_dirty_log_is_refused() {
    let evacuation = Evacuation::start(&["web"], 1);
    let command = || evacuation.command(&evacuation.addresses(), &[]);
    let exit = KernelFeature::PagemapScan.run_without(|| run(command(), 2));
    assert!(exit.stderr.contains("nothing can be planned"), "{exit:?}");
    assert!(evacuation.journal().is_none());
    let guest = &evacuation.guests["web"];
    assert_eq!(guest.source.status().unwrap(), "running");
}
