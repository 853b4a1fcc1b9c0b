//! `hikkoshi estimate` and `migrate --mode auto`: a guest and the line to its destination are
//! measured, and both stay as they are.
#![allow(clippy::unwrap_used)] // a test's failure is the message

use hikkoshi_lab::{Ram, Vm, VmConfig, Workload};
use hikkoshi_tests::{
    Exit, Guest, JsonSchema, Program, QemuState, TestEnv, assert_refused, hikkoshi, unique_address,
};
use serde_json::Value;
use std::process::Command;
use std::sync::Arc;

/// A guest that writes to 32 MiB.
fn writer(rate: u64) -> VmConfig {
    let workload = Workload::dirty(32).rate(rate).option("every_ms", 200);
    VmConfig::new().ram(Ram::shared(128)).workload(workload)
}

fn command(name: &str, vm: &Vm, more: &[&str]) -> Command {
    let mut command = Command::new(hikkoshi());
    command.args([name, "--qmp"]).arg(vm.qmp_path()).args(more);
    command
}

/// Runs `estimate`, which leaves the guest as it was: its JSON, which must be as published.
fn estimate(vm: &Vm, more: &[&str]) -> Value {
    let before = QemuState::of_vm(vm);
    let all = [&["--json", "-", "--seconds", "0.5"], more].concat();
    let exit = Program::start("estimate", command("estimate", vm, &all)).wait();
    assert_eq!(exit.code, Some(0), "{exit:?}");
    before.assert_unchanged(vm);
    JsonSchema::published().assert("estimate", exit.stdout.trim())
}

/// The prediction for one mode.
fn mode<'a>(found: &'a Value, mode: &str) -> &'a Value {
    let mut modes = found["modes"].as_array().unwrap().iter();
    modes.find(|other| other["mode"] == mode).unwrap()
}

fn likely(value: &Value) -> f64 {
    let likely = value["likely"].as_f64();
    likely.unwrap_or_else(|| panic!("{value} has no likely value"))
}

/// Starts the destination of a guest; `more` are arguments of `receive`.
fn receive(env: &TestEnv, guest: &Guest<'_>, name: &str, more: &[&str]) -> (Program, Vm) {
    let there = guest
        .config()
        .clone()
        .console(guest.vm().console().clone())
        .incoming()
        .start(env.lab(), name)
        .unwrap();
    let mut receive = command("receive", &there, more);
    receive.arg("--journal").arg(env.folder().join("journal"));
    (Program::start("receive", receive), there)
}

/// Moves the guest by `--mode auto`: its JSON.
fn migrate(env: &TestEnv, guest: &mut Guest<'_>, there: Vm, more: &[&str]) -> Value {
    let all = [&["--mode", "auto", "--json", "-"], more].concat();
    let mut migrate = command("migrate", guest.vm(), &all);
    migrate.arg("--journal").arg(env.folder().join("journal"));
    let exit = Program::start("migrate", migrate).wait();
    assert_eq!(exit.code, Some(0), "{exit:?}");
    assert!(exit.stderr.contains("was chosen: "), "{exit:?}");
    guest.set_vm(Arc::new(there));
    guest.assert_healthy();
    JsonSchema::published().assert("account", exit.stdout.trim())
}

/// A quiet guest, with TLS: the destination measures the line as often as it is asked, and then
/// receives the guest, by pre-copy.
#[test]
fn a_quiet_guest_and_the_line_to_its_destination() {
    let env = TestEnv::new();
    let mut guest = Guest::boot(&env, writer(1));
    let (receive, there) = receive(
        &env,
        &guest,
        "there",
        &["--listen", &unique_address(), "--invite"],
    );
    let invitation = receive.wait_stdout("hikkoshi1:");
    let vm = Arc::clone(guest.vm());
    let found = estimate(&vm, &["--to", &invitation, "--probe-limit", "16MiB"]);
    let line = &found["line"];
    assert_eq!(line["measured"], true, "{found}");
    let probe = line["probe_bytes"].as_u64().unwrap();
    assert!(probe > 1 << 20 && probe < 20 << 20, "{found}");
    // 32 MiB of the workload, and the system; not the rest of 128 MiB.
    let content = likely(&found["guest"]["content_bytes"]);
    assert!(content > f64::from(32 << 20), "{found}");
    assert!(content < f64::from(127 << 20), "{found}");
    for name in ["precopy", "postcopy", "hybrid"] {
        let mode = mode(&found, name);
        assert_eq!(mode["possible"], true, "{found}");
        assert!(likely(&mode["bytes"]) >= content, "{found}");
    }
    assert_eq!(found["recommended"]["mode"], "precopy", "{found}");
    receive.wait_stderr("has measured the line");

    // As text; no page of the guest has gone there.
    let words = [
        "--to",
        &invitation,
        "--probe-limit",
        "1MiB",
        "--seconds",
        "0.3",
    ];
    let text = Program::start("estimate", command("estimate", &vm, &words)).wait();
    for part in ["round trip", "measured with", "recommended: precopy"] {
        assert!(text.stdout.contains(part), "{part:?} is not in {text:?}");
    }
    let warnings: Vec<_> = text
        .stderr
        .lines()
        .filter(|line| line.contains("warn: "))
        .collect();
    let different: std::collections::BTreeSet<_> = warnings.iter().collect();
    assert_eq!(warnings.len(), different.len(), "said twice: {warnings:?}");
    let account = migrate(&env, &mut guest, there, &["--to", &invitation]);
    assert_eq!(account["mode"], "precopy", "{account}");
    assert_eq!(account["auto"]["chosen_mode"], "precopy", "{account}");
    assert_eq!(account["postcopy"], false, "{account}");
}

/// A guest that writes all of its pages faster than they are sent.
#[test]
#[ignore = "part of `make test-rates`"]
fn a_guest_that_writes_faster_than_the_line() {
    let env = TestEnv::new();
    let mut guest = Guest::boot(&env, writer(0));
    let vm = Arc::clone(guest.vm());
    let slow = ["--bandwidth", "24MB", "--compress", "off"];
    let found = estimate(&vm, &slow);
    assert_eq!(found["line"]["measured"], false, "{found}");
    let precopy = mode(&found, "precopy");
    assert_eq!(precopy["converges"], "no", "{found}");
    assert_eq!(precopy["total_ms"]["likely"], Value::Null, "{found}");
    let recommended = found["recommended"]["mode"].as_str().unwrap();
    assert_ne!(recommended, "precopy", "{found}");
    // All of its pages fit into a long pause.
    let patient = estimate(&vm, &["--bandwidth", "100GB", "--max-downtime", "60000"]);
    assert_eq!(mode(&patient, "precopy")["converges"], "yes", "{patient}");

    let address = format!("unix:{}", env.folder().join("listen").display());
    let (receive, there) = receive(&env, &guest, "there", &["--listen", &address]);
    receive.wait_stderr("waiting for a guest at ");
    let account = migrate(&env, &mut guest, there, &[&[&*address], &slow[..]].concat());
    assert_ne!(account["mode"], "precopy", "{account}");
    assert_eq!(account["auto"]["chosen_mode"], account["mode"], "{account}");
    assert_eq!(account["postcopy"], true, "{account}");
}

#[test]
fn what_cannot_be_estimated() {
    let env = TestEnv::new();
    let guest = Guest::start(&env, writer(1).arguments(["-S"]));
    let vm = guest.vm();
    let qmp = vm.qmp_path().to_str().unwrap();
    let refused = |more: &[&str], code, part: &str| -> Exit {
        let all = [&["estimate", "--qmp", qmp, "--seconds", "0.2"], more].concat();
        assert_refused(&all, code, &[part])
    };
    refused(&[], 2, "--bandwidth");
    refused(&["--bandwidth", "1Gb"], 2, "1Gb");
    refused(&["unix:/nowhere"], 1, "connecting to the destination");
    refused(&["192.0.2.1:7000"], 2, "--plaintext");
    assert_refused(
        &["estimate", "--qmp", "/nowhere", "--bandwidth", "1G"],
        1,
        &["/nowhere"],
    );
}
