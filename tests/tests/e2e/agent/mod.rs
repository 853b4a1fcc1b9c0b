//! The resource agent, called as Pacemaker calls it, without a cluster: nodes are run folders with
//! a daemon each, and what an agent asks Pacemaker for is answered by scripts.
#![allow(clippy::unwrap_used)] // a test's failure is the message

mod domains;
mod fenced;
mod moves;
mod pacemaker;
mod slow;

use pacemaker::Pacemaker;

use crate::daemon::{Daemon, write_template};
use hikkoshi_lab::{Console, ExpectedVm, GuestReport, Vm, VmConfig, Workload};
use hikkoshi_tests::{
    CertificateAuthority, Exit, LONG, Program, TestEnv, hikkoshi, log, unique_host,
};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The guest of these tests.
const NAME: &str = "web";

/// A port that each node's daemon listens on, at an address of its own.
const PORT: u16 = 7100;

/// OCF's exit codes.
const OK: i32 = 0;
const FAILED: i32 = 1;
const NOT_RUNNING: i32 = 7;

/// Nodes, and what the scripts answer for their cluster.
struct Cluster {
    env: TestEnv,
    pacemaker: Pacemaker,
    nodes: [Node; 2],
    /// Its console, wherever it runs.
    console: Console,
}

/// A node of the cluster.
struct Node {
    name: &'static str,
    address: String,
    run: PathBuf,
    daemon: Option<Daemon>,
    certificate: [String; 6],
    machines: std::cell::Cell<u32>,
}

/// An action, as Pacemaker calls it on a node.
struct Action<'a> {
    name: &'a str,
    node: &'a str,
    /// The node that the guest is moved to.
    target: &'a str,
    resource: &'a str,
    run: &'a Path,
    certificate: &'a [String; 6],
    /// The addresses of the nodes.
    map: &'a str,
    timeout_s: u32,
}

impl Action<'_> {
    /// Makes `command`, which starts hikkoshi, this action. Whether the guest is a template's or a
    /// domain is not said.
    fn set(&self, command: &mut Command, pacemaker: &Pacemaker) {
        let [_, ca, _, certificate, _, key] = self.certificate;
        command
            .args(["ocf-agent", self.name])
            .env("PATH", pacemaker.path())
            .env("OCF_RESOURCE_INSTANCE", self.resource)
            .env("OCF_RESKEY_folder", self.run)
            .env("OCF_RESKEY_address_map", self.map)
            .env("OCF_RESKEY_port", PORT.to_string())
            .env("OCF_RESKEY_tls_ca", ca)
            .env("OCF_RESKEY_tls_cert", certificate)
            .env("OCF_RESKEY_tls_key", key)
            .env("OCF_RESKEY_shutdown", "0")
            .env("OCF_RESKEY_CRM_meta_on_node", self.node)
            .env("OCF_RESKEY_CRM_meta_migrate_target", self.target)
            .env(
                "OCF_RESKEY_CRM_meta_timeout",
                (u64::from(self.timeout_s) * 1000).to_string(),
            );
    }
}

/// What else an action is called with.
#[derive(Clone, Copy, Default)]
struct With<'a> {
    /// Pacemaker's timeout, in seconds.
    timeout: Option<u32>,
    /// Parameters of the resource.
    parameters: &'a [(&'a str, &'a str)],
}

fn config() -> VmConfig {
    VmConfig::new().workload(Workload::verify(32).rate(8000))
}

impl Cluster {
    /// Two nodes with their daemons.
    fn start() -> Self {
        let env = TestEnv::new();
        let authority = CertificateAuthority::new(env.folder());
        let nodes = ["n1", "n2"].map(|name| Node::new(&env, &authority, name));
        Self {
            pacemaker: Pacemaker::new(env.folder(), &["n1", "n2"]),
            env,
            nodes,
            console: Console::default(),
        }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.env.folder().join(name)
    }

    /// The node is fenced: nothing of it is left, and Pacemaker forgets its attributes.
    fn fence(&mut self, node: usize) {
        let node = &mut self.nodes[node];
        if let Some(mut daemon) = node.daemon.take() {
            daemon.program.kill();
        }
        kill_processes(&node.run);
        fs::remove_dir_all(&node.run).unwrap();
        let name = node.name;
        log(format!("{name} is fenced"));
        self.pacemaker.remove(name);
    }

    /// A machine that this node's template starts next.
    fn expect(&self, node: usize) -> ExpectedVm {
        let node = &self.nodes[node];
        node.machines.set(node.machines.get() + 1);
        let name = format!("{}-{}", node.name, node.machines.get());
        let machine = config().console(self.console.clone());
        let expected = machine.expect(self.env.lab(), &name).unwrap();
        write_template(&self.template(node), &expected.command_line());
        expected
    }

    fn template(&self, node: &Node) -> PathBuf {
        self.file(&format!("{}.template", node.name))
    }

    /// An action of the agent on a node.
    fn command(&self, node: usize, action: &str, with: With<'_>) -> Command {
        let node = &self.nodes[node];
        let other = self.nodes.iter().find(|other| other.name != node.name);
        let other = other.unwrap();
        let map: Vec<_> = [node, other]
            .map(|node| format!("{}:{}", node.name, node.address))
            .into();
        let mut command = Command::new(hikkoshi());
        Action {
            name: action,
            node: node.name,
            target: other.name,
            resource: NAME,
            run: &node.run,
            certificate: &node.certificate,
            map: &map.join(" "),
            timeout_s: with.timeout.unwrap_or(120),
        }
        .set(&mut command, &self.pacemaker);
        command.env("OCF_RESKEY_template", self.template(node));
        for (name, value) in with.parameters {
            command.env(format!("OCF_RESKEY_{name}"), value);
        }
        command
    }

    /// Does an action to its end.
    fn act(&self, node: usize, action: &str, with: With<'_>) -> Exit {
        let name = format!("{action} on {}", self.nodes[node].name);
        Program::start(&name, self.command(node, action, with)).wait()
    }

    /// Checks what an action answers.
    fn assert(&self, node: usize, action: &str, code: i32) -> Exit {
        let exit = self.act(node, action, With::default());
        assert_eq!(exit.code, Some(code), "{action}: {}", exit.stderr);
        exit
    }

    /// Checks what a recurring monitor answers.
    fn assert_monitor(&self, node: usize, code: i32) -> Exit {
        let interval = [("CRM_meta_interval", "10000")];
        let with = With {
            parameters: &interval,
            ..With::default()
        };
        let exit = self.act(node, "monitor", with);
        assert_eq!(exit.code, Some(code), "monitor: {}", exit.stderr);
        exit
    }

    /// Starts the guest on a node.
    fn start_guest(&self, node: usize) -> Vm {
        let expected = self.expect(node);
        self.assert(node, "start", OK);
        let vm = expected.wait(&self.nodes[node].qmp()).unwrap();
        vm.wait_ready().unwrap();
        vm
    }

    /// Waits for the machine that a daemon starts for a move.
    fn received(&self, node: usize, expected: ExpectedVm) -> Vm {
        expected.wait(&self.nodes[node].qmp()).unwrap()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for node in &mut self.nodes {
            drop(node.daemon.take());
            kill_processes(&node.run);
        }
    }
}

impl Node {
    fn new(env: &TestEnv, authority: &CertificateAuthority, name: &'static str) -> Self {
        let address = unique_host().to_string();
        let run = env.folder().join(format!("run-{name}"));
        let certificate = authority.issue(&address);
        let mut node = Self {
            name,
            address,
            run,
            daemon: None,
            certificate,
            machines: 0.into(),
        };
        let rules = env.folder().join(format!("{name}.admit"));
        let template = env.folder().join(format!("{name}.template"));
        fs::write(&rules, format!("* * --template {}\n", template.display())).unwrap();
        fs::write(&template, "false\n").unwrap();
        fs::set_permissions(&template, fs::Permissions::from_mode(0o600)).unwrap();
        node.daemon = Some(node.start_daemon(&rules));
        node
    }

    fn start_daemon(&self, rules: &Path) -> Daemon {
        let certificate = self.certificate.each_ref().map(String::as_str);
        let more = [&certificate[..], &["--admit", rules.to_str().unwrap()]].concat();
        let address = format!("{}:{PORT}", self.address);
        Daemon::start_by(Command::new(hikkoshi()), &self.run, &address, &more)
    }

    fn qmp(&self) -> PathBuf {
        self.run.join(format!("machines/{NAME}.qmp"))
    }

    /// The processes that move the guest away.
    fn engines(&self) -> Vec<Pid> {
        engines(&self.run)
    }
}

/// The processes that move guests away from the node with this run folder.
fn engines(run: &Path) -> Vec<Pid> {
    processes(run, |words| {
        words.get(1).is_some_and(|word| word == "migrate")
    })
}

/// The processes with this run folder in their command lines, of which this is true.
fn processes(run: &Path, is_meant: impl Fn(&[String]) -> bool) -> Vec<Pid> {
    let run = run.to_str().unwrap();
    let all = fs::read_dir("/proc").unwrap().filter_map(|entry| {
        let path = entry.unwrap().path();
        let pid = path.file_name()?.to_str()?.parse().ok()?;
        let words = fs::read(path.join("cmdline")).ok()?;
        let words: Vec<_> = words
            .split(|&byte| byte == 0)
            .map(|word| String::from_utf8_lossy(word).into_owned())
            .collect();
        let found = words.iter().any(|word| word.contains(run)) && is_meant(&words);
        Pid::from_raw(found.then_some(pid)?)
    });
    all.collect()
}

/// Kills all processes of a node.
fn kill_processes(run: &Path) {
    loop {
        let left = processes(run, |_| true);
        if left.is_empty() {
            return;
        }
        for pid in left {
            let _ = kill_process(pid, Signal::KILL);
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}

/// The guest has checked its memory.
fn assert_healthy(vm: &Vm) {
    assert_eq!(vm.status().unwrap(), "running");
    let verdict = vm.sweep(LONG).unwrap();
    assert!(verdict.ok && verdict.bad == 0, "{verdict:?}");
    let lines = vm.console().lines();
    let bad = lines
        .iter()
        .find(|line| matches!(line.report, GuestReport::Bad(_)));
    assert!(bad.is_none(), "{bad:?}");
}
