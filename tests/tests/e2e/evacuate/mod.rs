//! `hikkoshi evacuate`: guests of one host are moved to several, each with a `hikkoshi daemon`.
#![allow(clippy::unwrap_used)] // a test's failure is the message

mod document;
mod failures;
mod two_hosts;

use crate::daemon::{Daemon, write_template};
use hikkoshi_lab::{ExpectedVm, Vm, VmConfig, Workload};
use hikkoshi_status::StatusFolder;
use hikkoshi_tests::{
    CertificateAuthority, JsonSchema, LONG, Program, TestEnv, hikkoshi, unique_address,
};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

/// More than one of these guests needs, with what is added for QEMU, and less than two.
const ROOM_FOR_ONE: u64 = 500 << 20;

/// Guests that are to be moved, and hosts for them.
struct Evacuation {
    env: TestEnv,
    authority: CertificateAuthority,
    guests: BTreeMap<&'static str, Guest>,
    hosts: Vec<Host>,
    /// The memory that each host says it has.
    room: u64,
}

struct Guest {
    source: Vm,
    expected: ExpectedVm,
}

struct Host {
    daemon: Daemon,
    run: PathBuf,
}

impl Evacuation {
    /// Boots guests with these names, and starts so many hosts that admit all of them.
    fn start(names: &[&'static str], hosts: usize) -> Self {
        let env = TestEnv::new();
        let authority = CertificateAuthority::new(env.folder());
        let mut evacuation = Self {
            env,
            authority,
            guests: BTreeMap::new(),
            hosts: Vec::new(),
            room: 64 << 30,
        };
        let config = VmConfig::new().workload(Workload::verify(32).rate(200));
        let lab = evacuation.env.lab();
        for name in names {
            let source = config.start(lab, &format!("{name}-here")).unwrap();
            source.wait_ready().unwrap();
            let there = config.clone().console(source.console().clone());
            let expected = there.expect(lab, &format!("{name}-there")).unwrap();
            let template = evacuation.env.folder().join(format!("{name} template"));
            write_template(&template, &expected.command_line());
            evacuation.guests.insert(*name, Guest { source, expected });
        }
        for number in 0..hosts {
            evacuation.start_host(number, "*", None);
        }
        evacuation
    }

    /// Starts a host that admits guests with these names. Its certificate is for the name
    /// `known_as`, or else its address.
    fn start_host(&mut self, number: usize, admits: &str, known_as: Option<&str>) {
        let folder = self.env.folder();
        let rules = folder.join(format!("admit{number}"));
        let template = format!("'{}/{{name}} template'", folder.display());
        fs::write(
            &rules,
            format!("source.example {admits} --template {template}\n"),
        )
        .unwrap();
        let address = unique_address();
        let host = address.split_once(':').unwrap().0;
        let certificate = self.authority.issue(known_as.unwrap_or(host));
        let run = folder.join(format!("host{number}"));
        let more: Vec<&str> = certificate.iter().map(String::as_str).collect();
        let more = [&more[..], &["--admit", rules.to_str().unwrap()]].concat();
        let daemon = Daemon::start_by(Command::new(hikkoshi()), &run, &address, &more);
        self.hosts.push(Host { daemon, run });
    }

    /// `hikkoshi evacuate` for all guests, to these addresses.
    fn command(&self, to: &[&str], more: &[&str]) -> Command {
        let mut command = self.asking(to, more);
        command.arg("--host-facts").arg(self.facts(to));
        command
    }

    /// The same, and the hosts are asked what they have.
    fn asking(&self, to: &[&str], more: &[&str]) -> Command {
        let mut command = Command::new(hikkoshi());
        command.arg("evacuate");
        for (name, guest) in &self.guests {
            command.arg(format!("{name}={}", guest.source.qmp_path().display()));
        }
        command.args(["--to", &to.join(","), "--line", "1Gbit", "--seconds", "0.5"]);
        command.args(["--journal", self.run().to_str().unwrap()]);
        command.args(["--json", self.result_path().to_str().unwrap()]);
        command.args(self.authority.issue("source.example"));
        command.args(more);
        command
    }

    fn addresses(&self) -> Vec<&str> {
        self.hosts
            .iter()
            .map(|host| host.daemon.address())
            .collect()
    }

    /// The run folder of the source.
    fn run(&self) -> PathBuf {
        self.env.folder().join("source")
    }

    fn result_path(&self) -> PathBuf {
        self.env.folder().join("result.json")
    }

    /// What the last run has written.
    fn result(&self) -> Value {
        let text = fs::read_to_string(self.result_path()).unwrap();
        JsonSchema::published().assert("evacuation_result", &text)
    }

    /// What the last run with `--plan` has written.
    fn plan(&self) -> Value {
        let text = fs::read_to_string(self.result_path()).unwrap();
        JsonSchema::published().assert("evacuation_plan", &text)
    }

    /// A file that says what these addresses have: tests that run at the same time share the
    /// memory of this machine.
    fn facts(&self, to: &[&str]) -> PathBuf {
        let facts = json!({ "free_memory": self.room, "processors": 4 });
        let all: BTreeMap<_, _> = to.iter().map(|address| (address, facts.clone())).collect();
        let file = self.env.folder().join("facts.json");
        fs::write(&file, serde_json::to_vec(&all).unwrap()).unwrap();
        file
    }

    /// The guest is at the host with this address, and has checked its memory there.
    fn assert_moved(&mut self, name: &str, to: &str) {
        let guest = self.guests.remove(name).unwrap();
        assert_eq!(guest.source.status().unwrap(), "paused", "{name}");
        let host = self.hosts.iter().find(|host| host.daemon.address() == to);
        let qmp = host
            .unwrap()
            .run
            .join("machines")
            .join(format!("{name}.qmp"));
        let destination = guest.expected.wait(&qmp).unwrap();
        assert_eq!(destination.status().unwrap(), "running", "{name}");
        let verdict = destination.sweep(LONG).unwrap();
        assert!(verdict.ok && verdict.bad == 0, "{name}: {verdict:?}");
    }

    /// Each guest has moved; says where each one is.
    fn assert_all_moved(&mut self) -> BTreeMap<String, String> {
        let result = self.result();
        let guests = result["guests"].as_array().unwrap();
        assert_eq!(guests.len(), self.guests.len(), "{result}");
        let places: BTreeMap<String, String> = guests
            .iter()
            .map(|guest| {
                assert_eq!(guest["outcome"], "moved", "{result}");
                let text = |member: &str| guest[member].as_str().unwrap().to_owned();
                (text("guest"), text("to"))
            })
            .collect();
        for (name, to) in &places {
            self.assert_moved(name, to);
        }
        places
    }

    /// What is known of it at the source.
    fn journal(&self) -> Option<hikkoshi_status::Evacuation> {
        let folder = StatusFolder::in_run_folder(&self.run());
        folder.read_evacuation().unwrap()
    }

    /// Nothing of the evacuation is left to be continued.
    fn assert_no_journal(&self) {
        let folder = StatusFolder::in_run_folder(&self.run()).evacuation();
        let left = fs::read_dir(&folder).unwrap();
        let left: Vec<_> = left.map(|file| file.unwrap().path()).collect();
        assert_eq!(left, [hikkoshi_status::Evacuation::last_in(&folder)]);
    }
}

/// Runs a command to its end, and checks its exit status.
fn run(command: Command, status: i32) -> hikkoshi_tests::Exit {
    let exit = Program::start("evacuate", command).wait();
    exit.assert(status, &[]);
    exit
}
