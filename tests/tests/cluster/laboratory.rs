//! A cluster as docs/pacemaker.md says, with guests.

use hikkoshi_lab::cluster::{Cluster, ClusterGuest, Machine, Node, Status};
use hikkoshi_lab::{
    Aio, Cache, Disk, DiskContent, DiskFormat, DiskImage, GuestReport, Ram, RamBackend, VmConfig,
    Workload, never_retried,
};
use hikkoshi_tests::{
    CertificateAuthority, Exit, LONG, Program, TestEnv, eventually, hikkoshi, log,
};
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

/// The operator's page.
pub(crate) const PAGE: &str = include_str!("../../../docs/pacemaker.md");

/// The fenced block of the page that has this line.
pub(crate) fn block(line: &str) -> &'static str {
    let mut blocks = PAGE.split("\n```").skip(1).step_by(2);
    let found = blocks.find(|block| block.lines().any(|one| one == line));
    let found = found.unwrap_or_else(|| panic!("docs/pacemaker.md has no block with {line:?}"));
    found.split_once('\n').unwrap().1
}

/// A guest, and what its resource is configured with.
pub(crate) struct Resource {
    pub(crate) name: &'static str,
    pub(crate) config: VmConfig,
    /// Parameters.
    pub(crate) params: String,
    /// Its disk is one of the node's own, which is copied in a move.
    is_local: bool,
}

impl Resource {
    /// A small guest that checks its memory, of which `mib` MiB cannot be compressed.
    pub(crate) fn new(name: &'static str, mib: u64) -> Self {
        Self {
            name,
            config: VmConfig::new()
                .ram(Ram::new(RamBackend::Default, 192))
                .workload(Self::workload(mib).rate(2000)),
            params: String::new(),
            is_local: false,
        }
    }

    /// What it does, as often as a rate says.
    pub(crate) fn workload(mib: u64) -> Workload {
        Workload::verify(mib)
            .with_runs("/dev/vda")
            .option("every_ms", 200)
    }

    pub(crate) fn params(mut self, params: &str) -> Self {
        self.params.push(' ');
        self.params.push_str(params);
        self
    }

    /// Its disk is one of the node's own, which is copied in a move.
    pub(crate) fn local(mut self) -> Self {
        self.is_local = true;
        self.params("copy_disks=true")
    }

    /// In the words of `crm configure`.
    fn text(&self) -> String {
        let (name, params) = (self.name, &self.params);
        let map: Vec<_> = Cluster::NAMES
            .iter()
            .zip(Cluster::ADDRESSES)
            .map(|(name, address)| format!("{name}:{address}"))
            .collect();
        let map = map.join(" ");
        format!(
            "primitive {name} ocf:hikkoshi:guest \
             params template=/etc/hikkoshi/{name}.template shutdown=0 address_map=\"{map}\"{params} \
             op start timeout=120s interval=0 op stop timeout=300s interval=0 on-fail=fence \
             op monitor timeout=60s interval=4s \
             op migrate_to timeout=300s interval=0 on-fail=block \
             op migrate_from timeout=60s interval=0 on-fail=restart meta allow-migrate=true\n"
        )
    }
}

/// A cluster with guests.
pub(crate) struct Laboratory {
    pub(crate) cluster: Cluster,
    pub(crate) guests: Vec<ClusterGuest>,
    env: TestEnv,
}

impl Laboratory {
    /// Starts the nodes. Nothing is configured yet.
    pub(crate) fn nodes() -> Self {
        let env = TestEnv::new();
        let cluster = Cluster::prepare(env.lab(), &hikkoshi()).unwrap();
        let authority = CertificateAuthority::new(env.folder());
        for node in cluster.nodes() {
            let files = authority.issue_for(&[node.name(), node.address()]);
            for (file, name) in [(1, "ca.crt"), (3, "host.crt"), (5, "host.key")] {
                let to = node.etc().join(name);
                fs::copy(&files[file], &to).unwrap();
                fs::set_permissions(to, Permissions::from_mode(0o600)).unwrap();
            }
            for name in ["admit", "daemon.conf"] {
                let text = block(&format!("# each node: /etc/hikkoshi/{name}"));
                fs::write(node.etc().join(name), text).unwrap();
            }
        }
        Self {
            cluster,
            guests: Vec::new(),
            env,
        }
    }

    /// A cluster with these guests, which run where Pacemaker has placed them: the first one on the
    /// first node.
    pub(crate) fn start(resources: Vec<Resource>) -> Self {
        let mut laboratory = Self::nodes();
        let mut text = String::from(
            "property stonith-enabled=true no-quorum-policy=stop\n\
             primitive fencing stonith:fence_lab op monitor interval=10min\n\
             rsc_defaults resource-stickiness=100\n",
        );
        for resource in resources {
            text.push_str(&resource.text());
            laboratory.add(resource.name, resource.config, resource.is_local);
        }
        // Where it starts; stickiness keeps it anywhere.
        let first = laboratory.guests[0].name();
        text.push_str(&format!("location {first}-first {first} 10: n1\n"));
        laboratory.cluster.start().unwrap();
        laboratory.cluster.configure(&text).unwrap();
        for guest in &laboratory.guests {
            laboratory.wait(&format!("{} to start", guest.name()), |status| {
                status.resource(guest.name()).role == "Started"
            });
            guest.wait_run(1, LONG).unwrap();
        }
        laboratory
    }

    /// Adds a guest with a disk for its record. Its resource is not configured yet.
    pub(crate) fn add(&mut self, name: &str, config: VmConfig, is_local: bool) {
        let lab = self.env.lab();
        let content = DiskContent::Blocks { mib: 1 };
        let blank = |folder: Option<&Path>| {
            DiskImage::blank(lab, folder, name, DiskFormat::Raw, content).unwrap()
        };
        let disk = match is_local {
            true => {
                for node in self.cluster.nodes() {
                    std::mem::forget(blank(Some(&node.local())));
                }
                // The folder may be in memory.
                let disk = Disk::new(blank(Some(&Cluster::local(lab))));
                disk.cache(Cache::Writeback).aio(Aio::Threads)
            }
            false => Disk::new(blank(None)),
        };
        let guest = ClusterGuest::new(lab, name, config.disk(disk)).unwrap();
        guest.install(&self.cluster).unwrap();
        self.guests.push(guest);
    }

    pub(crate) fn guest(&self, name: &str) -> &ClusterGuest {
        self.guests
            .iter()
            .find(|guest| guest.name() == name)
            .unwrap()
    }

    pub(crate) fn node(&self, name: &str) -> &Node {
        self.cluster.node(name)
    }

    /// Waits until Pacemaker says what is wanted. Meanwhile no guest's disk is in use twice.
    pub(crate) fn wait(&self, what: &str, mut wanted: impl FnMut(&Status) -> bool) {
        let waited = self.cluster.wait(what, LONG, |status| {
            for guest in &self.guests {
                self.assert_disk_used_once(guest);
            }
            wanted(status)
        });
        if let Err(error) = waited {
            panic!("{error}");
        }
    }

    fn assert_disk_used_once(&self, guest: &ClusterGuest) {
        let locks = guest.lock_disk();
        if locks.len() > 1 {
            let names: Vec<_> = locks.iter().map(|machine| machine.name()).collect();
            never_retried(format_args!("a disk was used twice: {names:?}"));
            panic!(
                "the disk of {} is used by {names:?}\n{}",
                guest.name(),
                self.cluster.report()
            );
        }
    }

    /// Waits until the guest runs there, and Pacemaker knows that, and has nothing to do with it.
    pub(crate) fn wait_on(&self, guest: &str, node: &str) -> Arc<Machine> {
        self.wait(&format!("{guest} to run on {node}"), |status| {
            let resource = status.resource(guest);
            resource.runs_on(node) && resource.pending.is_none()
        });
        let machine = self.guest(guest).running();
        let machine = machine.unwrap_or_else(|| panic!("{guest} does not run"));
        assert_eq!(machine.node(), node, "{:?}", self.guest(guest).ran());
        machine
    }

    /// The node where the guest runs.
    pub(crate) fn where_is(&self, guest: &str) -> String {
        let running = self.guest(guest).running();
        running
            .unwrap_or_else(|| panic!("{guest} does not run"))
            .node()
            .to_owned()
    }

    /// Runs a command on a node with quorum.
    pub(crate) fn order(&self, script: &str) -> String {
        let node = self.cluster.any().unwrap();
        log(format!("{}# {script}", node.name()));
        node.shell(script).unwrap_or_else(|error| panic!("{error}"))
    }

    /// Orders a move, by a constraint that holds from now on. If the guest is being moved away from
    /// there, Pacemaker refuses that without `--force`; and around a handover it refuses any order.
    pub(crate) fn move_to(&self, guest: &str, node: &str) {
        let clear = format!("crm_resource --clear --resource {guest} 2>/dev/null || true");
        let order = format!("crm_resource --move --resource {guest} --node {node}");
        let script = format!("{clear}; {order} || {order} --force");
        log(format!("{guest} is to move to {node}"));
        eventually("Pacemaker to take the order", || {
            let at = self.cluster.any().map_err(|error| error.to_string())?;
            let ordered = at.shell(&script).map(drop);
            ordered.map_err(|error| error.to_string())
        });
    }

    /// Runs hikkoshi on a node to its end.
    pub(crate) fn hikkoshi(&self, node: &str, words: &[&str]) -> Exit {
        let mut command = self.node(node).command("hikkoshi");
        command.args(words);
        Program::start(&format!("hikkoshi {} on {node}", words[0]), command).wait()
    }

    /// The guest has run exactly once at any time, and has booted `runs` times. It runs now in one
    /// machine, no other is left, and its memory is whole.
    pub(crate) fn assert_whole(&self, guest: &str, runs: u64) {
        let guest = self.guest(guest);
        self.assert_once(guest);
        let verdict = guest
            .sweep(LONG)
            .unwrap_or_else(|error| panic!("{error}\n{}", self.cluster.report()));
        assert!(verdict.ok && verdict.bad == 0, "{verdict:?}");
        guest.wait_beat(LONG).unwrap();
        assert_eq!(guest.record().unwrap().0, runs, "{:?}", guest.ran());
        self.wait("no other QEMU to be left", |_| guest.alive().len() == 1);
        assert_eq!(guest.lock_disk().len(), 1, "its locks are not seen");
        self.assert_once(guest);
        log(format!("{} is whole, in run {runs}", guest.name()));
    }

    /// The same of all guests.
    pub(crate) fn assert_all_whole(&self, runs: u64) {
        for guest in &self.guests {
            self.assert_whole(guest.name(), runs);
        }
    }

    fn assert_once(&self, guest: &ClusterGuest) {
        if let Some(twice) = guest.ran_twice() {
            never_retried(format_args!("a guest ran twice: {twice:?}"));
            panic!(
                "{} ran twice: {twice:?}\n{}",
                guest.name(),
                self.cluster.report()
            );
        }
        let lines = guest.console().lines();
        let bad = lines
            .iter()
            .find(|line| matches!(line.report, GuestReport::Bad(_)));
        assert!(bad.is_none(), "{bad:?}\n{}", self.cluster.report());
    }

    /// The guest is stopped, and nothing is left of it.
    pub(crate) fn assert_stopped(&self, guest: &str) {
        // In the moment of a handover Pacemaker takes it for stopped, too.
        self.wait(&format!("{guest} to be stopped"), |status| {
            let resource = status.resource(guest);
            let is_over = !resource.failed && resource.pending.is_none();
            resource.nodes.is_empty() && is_over && self.guest(guest).alive().is_empty()
        });
        self.assert_once(self.guest(guest));
    }
}
