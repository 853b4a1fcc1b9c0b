//! Moving a domain between two hosts with libvirt: by hikkoshi, or by libvirt itself.

use crate::{
    Breakpoint, Exit, Exits, JsonReport, LONG, Program, Relay, RelayAction, TestEnv, address_in,
    eventually, hikkoshi, left_in, log,
};
use hikkoshi_lab::libvirt::{Domain, LibvirtHost};
use std::path::{Path, PathBuf};
use std::process::Command;

/// How a domain is moved by hikkoshi.
#[derive(Clone, Debug)]
pub struct DomainPlan {
    mode: &'static str,
    migrate_args: Vec<String>,
    receive_args: Vec<String>,
    receive_prepared: Option<&'static str>,
    breakpoint: Option<(Breakpoint, RelayAction)>,
}

impl DomainPlan {
    /// A move in that mode: with an invitation, over TCP with TLS.
    pub fn new(mode: &'static str) -> Self {
        Self {
            mode,
            migrate_args: Vec::new(),
            receive_args: Vec::new(),
            receive_prepared: None,
            breakpoint: None,
        }
    }

    /// Adds arguments for `hikkoshi migrate`.
    #[must_use]
    pub fn migrate_args(mut self, arguments: &[&str]) -> Self {
        self.migrate_args
            .extend(arguments.iter().map(|&a| a.to_owned()));
        self
    }

    /// Adds arguments for `hikkoshi receive`.
    #[must_use]
    pub fn receive_args(mut self, arguments: &[&str]) -> Self {
        self.receive_args
            .extend(arguments.iter().map(|&a| a.to_owned()));
        self
    }

    /// Starts `hikkoshi receive` in a mount namespace of its own, after this shell script.
    #[must_use]
    pub fn receive_after(mut self, script: &'static str) -> Self {
        self.receive_prepared = Some(script);
        self
    }

    /// Connects the engines through a relay, by Unix sockets, which holds messages at a breakpoint.
    #[must_use]
    pub fn hold_at(mut self, at: Breakpoint) -> Self {
        self.breakpoint = Some((at, RelayAction::Hold));
        self
    }
}

/// A domain that hikkoshi moves from one host to the other.
#[derive(Debug)]
pub struct DomainMove<'h> {
    /// `hikkoshi migrate`.
    pub migrate: Program,
    /// `hikkoshi receive`.
    pub receive: Program,
    relay: Option<Relay>,
    from: &'h LibvirtHost,
    to: &'h LibvirtHost,
    domain: String,
    address: String,
    mode: &'static str,
    json_reports: [PathBuf; 2],
    journals: [PathBuf; 2],
}

impl<'h> DomainMove<'h> {
    /// Starts both engines.
    ///
    /// # Panics
    /// When an engine cannot be started.
    pub fn start(
        env: &TestEnv,
        domain: &Domain<'_>,
        [from, to]: [&'h LibvirtHost; 2],
        plan: &DomainPlan,
    ) -> Self {
        let json_reports = ["migrate", "receive"].map(|name| {
            let path = env.folder().join(format!("{name}-domain.json"));
            let _ = std::fs::remove_file(&path);
            path
        });
        let journals =
            ["source", "destination"].map(|side| env.folder().join(format!("journals-{side}")));
        let listen = match plan.breakpoint {
            Some(_) => format!("unix:{}", env.folder().join("listen").display()),
            None => format!("{}:7100", to.address()),
        };
        let mut receive = match plan.receive_prepared {
            None => to.command(hikkoshi()),
            Some(script) => {
                let script = format!("{script}; exec \"$@\"");
                let mut receive = to.command("unshare");
                receive.args(["--mount", "bash", "-euo", "pipefail", "-c", &script, "bash"]);
                receive.arg(hikkoshi());
                receive
            }
        };
        receive.args(["receive", "--connect", "qemu:///system"]);
        receive.args(["--listen", &listen]);
        receive.arg("--json").arg(&json_reports[1]);
        receive.arg("--journal").arg(&journals[1]);
        receive.arg("--journal-link").arg(link_to(&journals[1]));
        receive.args(&plan.receive_args);
        let receive = Program::start("receive", receive);
        let line = receive.wait_stderr("waiting for a guest at ");
        // Not that of another move, which was given up at one side only.
        if journals_in(&journals[1]).is_empty() {
            assert_not_removable(&journals[1]);
        }
        let relay = plan.breakpoint.map(|at| {
            let socket = env.folder().join("relay");
            let _ = std::fs::remove_file(&socket);
            Relay::start(Some(&socket), address_in(&line), false, Some(at), None)
        });
        let mut migrate = from.command(hikkoshi());
        migrate.args(["migrate", "--mode", plan.mode, "--domain", domain.name()]);
        migrate.arg("--json").arg(&json_reports[0]);
        let invitation = match &relay {
            Some(relay) => {
                migrate.arg(relay.address());
                String::new()
            }
            None => {
                migrate.args(["--to", "-"]);
                receive.wait_stdout("hikkoshi1:")
            }
        };
        migrate.arg("--journal").arg(&journals[0]);
        migrate.arg("--journal-link").arg(link_to(&journals[0]));
        migrate.args(&plan.migrate_args);
        Self {
            migrate: Program::start_with_input("migrate", migrate, &invitation),
            address: address_in(&line).to_owned(),
            receive,
            relay,
            from,
            to,
            domain: domain.name().to_owned(),
            mode: plan.mode,
            json_reports,
            journals,
        }
    }

    /// The relay between the engines.
    ///
    /// # Panics
    /// When there is none.
    pub fn relay(&self) -> &Relay {
        self.relay.as_ref().unwrap()
    }

    /// Waits until the relay holds at its breakpoint.
    ///
    /// # Panics
    /// When the breakpoint is not reached.
    pub fn wait_held(&self) {
        assert!(
            self.relay().wait_reached(LONG),
            "breakpoint not reached; migrate: {}; receive: {}",
            self.migrate.stderr(),
            self.receive.stderr()
        );
    }

    /// Waits until the destination has recorded that it runs the guest. In post-copy pages arrive
    /// before that.
    ///
    /// # Panics
    /// After a long time, or when there is no journal.
    pub fn wait_running(&self) {
        let journal = journal_in(&self.journals[1]);
        eventually("the destination to record that it runs the guest", || {
            let text = std::fs::read_to_string(&journal).map_err(|error| error.to_string())?;
            match text.contains(r#""stage": "running""#) {
                true => Ok(()),
                false => Err(text),
            }
        });
    }

    /// Removes the destination's journal, as if its engine had been killed before it was written.
    ///
    /// # Panics
    /// When there is none.
    pub fn forget_destination(&self) {
        std::fs::remove_file(journal_in(&self.journals[1])).unwrap();
    }

    /// Starts `hikkoshi receive --resume` in place of the engine that has ended.
    ///
    /// # Panics
    /// When it does not listen.
    pub fn resume_receive(&mut self) {
        let mut receive = self.to.command(hikkoshi());
        receive.arg("receive").arg(resume_from(&self.journals[1]));
        receive.args(["--listen", &self.address, "--json"]);
        receive.arg(&self.json_reports[1]);
        self.receive = Program::start("receive --resume", receive);
        self.receive.wait_stderr("waiting for its source at ");
    }

    /// How `hikkoshi receive --resume` ends if there is nothing to be resumed.
    ///
    /// # Panics
    /// When it cannot be started.
    pub fn refused_resume_receive(&self) -> Exit {
        let mut receive = self.to.command(hikkoshi());
        receive.arg("receive").arg(resume_from(&self.journals[1]));
        Program::start("receive --resume", receive).wait()
    }

    /// Starts `hikkoshi migrate --resume` in place of the engine that has ended.
    ///
    /// # Panics
    /// When it cannot be started.
    pub fn resume_migrate(&mut self) {
        let mut migrate = self.from.command(hikkoshi());
        migrate.arg("migrate").arg(resume_from(&self.journals[0]));
        migrate.args([&self.address, "--json"]);
        migrate.arg(&self.json_reports[0]);
        self.migrate = Program::start("migrate --resume", migrate);
    }

    /// How `hikkoshi receive --resume --give-up` ends, with more arguments, in place of the engine
    /// that has ended.
    ///
    /// # Panics
    /// When it cannot be started.
    pub fn give_up_receive(&self, more: &[&str]) -> Exit {
        let mut receive = self.to.command(hikkoshi());
        receive.args(["receive", &resume_from(&self.journals[1]), "--give-up"]);
        receive.args(more);
        Program::start("receive --give-up", receive).wait()
    }

    /// How `hikkoshi migrate --resume --give-up` ends, with more arguments.
    ///
    /// # Panics
    /// When it cannot be started.
    pub fn give_up_migrate(&self, more: &[&str]) -> Exit {
        let mut migrate = self.from.command(hikkoshi());
        migrate.args(["migrate", &resume_from(&self.journals[0]), "--give-up"]);
        migrate.args(more);
        Program::start("migrate --give-up", migrate).wait()
    }

    /// The journals that are left.
    ///
    /// # Panics
    /// When a folder cannot be read.
    pub fn journals(&self) -> Vec<PathBuf> {
        self.journals
            .iter()
            .flat_map(|folder| journals_in(folder))
            .collect()
    }

    /// What is left in the destination's run folder: journals, and files of the domain.
    ///
    /// # Panics
    /// When the folder cannot be read.
    pub fn left_at_destination(&self) -> Vec<String> {
        left_in(&self.journals[1])
    }

    /// Waits until both engines have exited.
    ///
    /// # Panics
    /// When they do not exit, or a JSON report is not valid.
    pub fn wait(mut self) -> Exits {
        let migrate = self.migrate.wait();
        let receive = self.receive.wait();
        let json_reports = self.json_reports.map(JsonReport::written_to);
        if let Some(report) = &json_reports[0] {
            log(format!("{} {}: {report}", self.domain, self.mode));
        }
        Exits {
            migrate,
            receive,
            json_reports,
        }
    }

    /// Waits until the source has exited because the domain stays there. A destination that
    /// continues to wait for a source is interrupted.
    ///
    /// # Panics
    /// When the source exits for another reason.
    pub fn refused(mut self) -> Exits {
        self.migrate.wait();
        self.receive.wait_exited_or_refused();
        self.receive.kill();
        let exits = self.wait();
        exits.assert_source(1, &[]);
        exits
    }

    /// Waits until both engines have exited: the guest has moved, but something is left to do,
    /// which both have said. Returns what.
    ///
    /// # Panics
    /// When one fails, or has not said it.
    pub fn wait_moved_but(self) -> String {
        let exits = self.wait();
        let reports = exits.json_reports.clone();
        let left = reports.map(|report| report.and_then(|report| report.0.account.left_to_do));
        let [Some(source), Some(destination)] = left else {
            panic!("nothing is left to do: {exits:?}");
        };
        exits.assert_source(0, &["at the destination: ", &source]);
        exits.assert_destination(0, &[&destination]);
        assert_eq!(source, destination);
        source
    }

    /// Waits until both engines have exited, successfully.
    ///
    /// # Panics
    /// When one fails.
    pub fn complete(self) -> JsonReport {
        let exits = self.wait();
        exits.assert_source(0, &[]);
        exits.assert_destination(0, &[]);
        let [Some(report), Some(_)] = exits.json_reports.clone() else {
            panic!("a JSON report is missing: {exits:?}");
        };
        report
    }
}

/// `--resume` with the only journal in that folder.
fn resume_from(folder: &Path) -> String {
    let link = link_to(folder);
    assert_eq!(std::fs::canonicalize(&link).unwrap(), journal_in(folder));
    format!("--resume={}", link.display())
}

/// Leads to the journal that is in this folder.
fn link_to(folder: &Path) -> PathBuf {
    folder.with_extension("link")
}

fn journal_in(folder: &Path) -> PathBuf {
    let journals = journals_in(folder);
    assert_eq!(journals.len(), 1, "{journals:?}");
    journals[0].clone()
}

/// The package stays: a receiver waits whose journals are in this folder, and has no QEMU yet.
fn assert_not_removable(folder: &Path) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging/libexec/check-removable");
    let asked = Command::new(script).arg(folder).output().unwrap();
    let said = String::from_utf8_lossy(&asked.stderr);
    assert!(said.contains("moves or awaits a guest"), "{said}");
}

fn journals_in(folder: &Path) -> Vec<PathBuf> {
    let files = std::fs::read_dir(folder).unwrap();
    let paths = files.map(|file| file.unwrap().path());
    paths
        .filter(|path| path.extension().is_some_and(|end| end == "json"))
        .collect()
}

/// Makes libvirt move a domain, by `virsh migrate --live` with these options.
///
/// # Panics
/// When it fails.
pub fn virsh_migrate(domain: &str, [from, to]: [&LibvirtHost; 2], options: &[&str]) {
    let uri = to.uri();
    let address = format!("tcp://{}", to.address());
    // libvirt does not know that the hosts share their disks.
    let words = ["migrate", "--live", "--unsafe", domain, &uri, &address];
    from.virsh(&[&words, options].concat()).unwrap();
}
