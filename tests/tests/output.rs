//! What programs read: exit codes, `--json`, `--progress json`.
#![allow(clippy::unwrap_used)] // a test's failure is the message

use hikkoshi_lab::{VmConfig, Workload};
use hikkoshi_tests::{Account, Guest, Scene, Trip, refused};

#[test]
fn json_on_standard_output_is_alone_there() {
    let scene = Scene::new();
    let workload = Workload::verify(16).rate(5000).option("every_ms", 200);
    let mut guest = Guest::boot(&scene, VmConfig::new().workload(workload));
    let (ends, arrived) = guest.set_out(&Trip::by("hybrid").json_printed()).wait();
    ends.assert_source(0, &[]);
    Account::read(&ends.migrate.printed).check("hybrid", 256);
    assert_eq!(arrived.destination.status().unwrap(), "running");
    guest.is_now_in(arrived.destination);
    // An account that cannot be written does not change where the guest is.
    let trip = Trip::by("hybrid")
        .with(&["--progress", "none"])
        .json_nowhere();
    let (ends, arrived) = guest.set_out(&trip).wait();
    ends.assert_source(0, &["writing the account"]);
    assert_eq!(arrived.destination.status().unwrap(), "running");
    guest.is_now_in(arrived.destination);
    guest.is_sound();
}

#[test]
fn progress_for_programs_is_json_line_by_line() {
    let scene = Scene::new();
    let workload = Workload::verify(16).rate(5000).option("every_ms", 200);
    let mut guest = Guest::boot(&scene, VmConfig::new().workload(workload));
    let slowly = ["--progress", "json", "--bandwidth", "60M"];
    let trip = Trip::by("hybrid").with(&slowly);
    let (ends, arrived) = guest.set_out(&trip).wait();
    guest.arrive(&ends, arrived, "running");
    let mut progress = 0;
    for line in ends.migrate.said.lines() {
        let value: serde_json::Value = serde_json::from_str(line).unwrap();
        progress += u32::from(value["progress"]["done_pages"].is_u64());
    }
    assert!(progress > 0);
}

#[test]
fn bad_usage_is_2() {
    let usage: [&[&str]; 9] = [
        &[],
        &["emigrate"],
        &["migrate"],
        &["migrate", "--qmp", "/nowhere"],
        &["migrate", "--qmp", "/nowhere", "no-address"],
        &[
            "migrate",
            "--qmp",
            "/nowhere",
            "unix:/nowhere",
            "--mode",
            "fast",
        ],
        &[
            "migrate",
            "--qmp",
            "/nowhere",
            "unix:/nowhere",
            "--bandwidth",
            "0",
        ],
        &[
            "migrate",
            "--qmp",
            "/nowhere",
            "unix:/nowhere",
            "--max-downtime",
            "soon",
        ],
        &["receive", "--qmp", "/nowhere"],
    ];
    for arguments in usage {
        let ended = refused(arguments, 2, &[]);
        assert!(
            ended.said.contains("Usage") || ended.said.contains("--help"),
            "{ended:?}"
        );
    }
}

#[test]
fn tcp_beyond_this_machine_has_to_be_said_aloud() {
    let why = [
        "is beyond this machine",
        "without encryption",
        "--plaintext",
    ];
    refused(&["migrate", "--qmp", "/nowhere", "10.1.2.3:7000"], 2, &why);
    // Said aloud, it is the next thing that is wrong; and so where encryption
    // is what is meant.
    let next = ["QMP socket /nowhere"];
    refused(
        &["receive", "--qmp", "/nowhere", "--listen", "0.0.0.0:0"],
        1,
        &next,
    );
    refused(
        &[
            "migrate",
            "--qmp",
            "/nowhere",
            "10.1.2.3:7000",
            "--plaintext",
        ],
        1,
        &next,
    );
    refused(
        &[
            "receive",
            "--qmp",
            "/nowhere",
            "--listen",
            "0.0.0.0:0",
            "--plaintext",
        ],
        1,
        &next,
    );
}
