//! Plans, and evacuations in which nothing fails.
#![allow(clippy::unwrap_used)] // a test's failure is the message

use super::{Evacuation, ROOM_FOR_ONE, run};
use serde_json::Value;

/// Two guests, and two hosts with room for one each: the plan says so first, and nothing moves.
#[test]
#[ignore = "two guests and two hosts: make test-evacuate"]
fn two_guests_go_to_two_hosts() {
    let mut evacuation = Evacuation::start(&["web-one", "web-two"], 2);
    evacuation.room = ROOM_FOR_ONE;
    let addresses = evacuation.addresses();
    let more = ["--within", "10min", "--mode", "hybrid"];
    let command = evacuation.command(&addresses, &[&more[..], &["--plan"]].concat());
    let planned = run(command, 0);
    assert!(
        planned.stdout.contains("deadline     10.0 min: met"),
        "{planned:?}"
    );
    let plan = evacuation.plan();
    let to = |plan: &Value| -> Vec<String> {
        let moves = plan["moves"].as_array().unwrap().iter();
        let mut to: Vec<_> = moves
            .map(|it| it["to"].as_str().unwrap().to_owned())
            .collect();
        to.sort_unstable();
        to
    };
    let mut expected: Vec<_> = addresses.iter().map(|it| (*it).to_owned()).collect();
    expected.sort_unstable();
    assert_eq!(to(&plan), expected, "{plan}");
    // A limit that is too low for a deadline: it says what would help.
    let late = ["--within", "30s", "--bandwidth", "1M", "--plan"];
    let late = run(evacuation.command(&addresses, &late), 1);
    let not_met = "deadline     30.0 s: not met";
    assert!(late.stdout.contains(not_met), "{late:?}");
    let within = &evacuation.plan()["within"];
    assert_eq!(within["met"], "no", "{within}");
    let changes = within["changes"].as_array().unwrap();
    let no_limit = |it: &Value| it["change"].as_str().unwrap().contains("limit");
    assert!(changes.iter().any(no_limit), "{within}");
    for guest in evacuation.guests.values() {
        assert_eq!(guest.source.status().unwrap(), "running");
    }

    let command = evacuation.command(&addresses, &more);
    let moved = run(command, 0);
    assert!(
        moved.stdout.contains("2 of 2 guests have moved"),
        "{moved:?}"
    );
    assert_eq!(to(&evacuation.result()["plan"]), expected);
    evacuation.assert_no_journal();
    let places = evacuation.assert_all_moved();
    let mut hosts: Vec<_> = places.into_values().collect();
    hosts.sort_unstable();
    assert_eq!(hosts, expected);
}

/// Each daemon says what its host has. The line is measured.
#[test]
#[ignore = "measures a line: make test-evacuate"]
fn hosts_are_asked_what_they_have() {
    let evacuation = Evacuation::start(&["web"], 2);
    let mut command = evacuation.asking(&evacuation.addresses(), &["--plan"]);
    let arguments: Vec<_> = command.get_args().map(ToOwned::to_owned).collect();
    let without_line = arguments
        .iter()
        .filter(|it| *it != "--line" && *it != "1Gbit");
    let mut measuring = std::process::Command::new(command.get_program());
    measuring.args(without_line);
    for command in [&mut command, &mut measuring] {
        let planned = std::mem::replace(command, std::process::Command::new("true"));
        // On a busy machine there may be no room.
        let exit = hikkoshi_tests::Program::start("evacuate", planned).wait();
        assert!(matches!(exit.code, Some(0 | 1)), "{exit:?}");
        let plan = evacuation.plan();
        for there in plan["destinations"].as_array().unwrap() {
            assert!(there["free_memory_bytes"].is_u64(), "{plan}");
            let rate = there["line_bytes_per_second"]["likely"].as_f64();
            assert!(rate.is_some_and(|rate| rate > 0.0), "{plan}");
        }
    }
}
