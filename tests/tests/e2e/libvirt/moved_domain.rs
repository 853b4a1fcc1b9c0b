//! Domains that move between two libvirt daemons: what the guest, its client and the users of both
//! daemons see.
#![allow(clippy::unwrap_used)] // a test's failure is the message

use super::one_host::built_with_libvirt;
use hikkoshi_lab::libvirt::{
    Domain, DomainConfig, DomainConsole, DomainEvents, LibvirtHost, LibvirtHosts,
};
use hikkoshi_lab::{
    DatagramClient, Disk, DiskContent, DiskFormat, DiskImage, GuestNetwork, GuestReport, Pace,
    Workload,
};
use hikkoshi_tests::{
    DomainMove, DomainPlan, JsonReport, LONG, RedisLoad, TestEnv, log, virsh_migrate,
};
use std::fs::File;
use std::io::Write as _;
use std::time::Duration;

/// The guest's port.
pub(crate) const PORT: u16 = 7000;

/// The time between two datagrams of the client.
const INTERVAL: Duration = Duration::from_millis(5);

/// What moves a domain.
#[derive(Clone, Copy, Debug)]
pub(crate) enum How {
    /// libvirt, with these options of `virsh migrate`.
    Virsh(&'static [&'static str]),
    /// hikkoshi, in that mode and with these options of `migrate`.
    Hikkoshi(&'static str, &'static [&'static str]),
}

impl How {
    /// Moves the domain. Afterwards it runs at the destination only, as both daemons say.
    pub(crate) fn moves(
        self,
        env: &TestEnv,
        domain: &Domain<'_>,
        hosts: [&LibvirtHost; 2],
    ) -> Option<JsonReport> {
        let report = match self {
            Self::Virsh(options) => {
                virsh_migrate(domain.name(), hosts, options);
                None
            }
            Self::Hikkoshi(mode, options) => {
                let plan = DomainPlan::new(mode).migrate_args(options);
                Some(DomainMove::start(env, domain, hosts, &plan).complete())
            }
        };
        assert_eq!(hosts[1].state(domain.name()).unwrap(), "running");
        let left = hosts[0].state(domain.name()).unwrap();
        assert!(matches!(left.as_str(), "absent" | "shut off"), "{left}");
        if let Self::Hikkoshi(mode, _) = self {
            record(hosts, mode);
        }
        report
    }
}

/// The file to which each kind of move that was made is added, as a row of docs/versions.md.
const MOVES: &str = "HIKKOSHI_LIBVIRT_MOVES";

fn record(hosts: [&LibvirtHost; 2], mode: &str) {
    let Some(path) = std::env::var_os(MOVES) else {
        return;
    };
    let [from, to] = hosts.map(|host| {
        let version = host.version();
        format!("{}, {}", version.number(), version.qemu())
    });
    let file = File::options().create(true).append(true).open(path);
    // In one piece: tests run at the same time.
    let row = format!("| {from} | {to} | {mode} |\n");
    file.unwrap().write_all(row.as_bytes()).unwrap();
}

/// Post-copy by libvirt begins after the first round: the guest writes more than the limit lets
/// pass.
pub(crate) const VIRSH_POSTCOPY: How = How::Virsh(&[
    "--bandwidth",
    "20",
    "--postcopy",
    "--postcopy-after-precopy",
]);

/// What the daemons report while a domain is moved, the source's first.
pub(crate) type Events = [&'static [&'static str]; 2];

/// `virsh migrate --live`.
pub(crate) const PRECOPY_EVENTS: Events = [
    &[
        "lifecycle: Suspended Migrated",
        "lifecycle: Stopped Migrated",
        "job-completed:",
    ],
    &["lifecycle: Started Migrated", "lifecycle: Resumed Migrated"],
];

/// `virsh migrate --live --postcopy`.
pub(crate) const POSTCOPY_EVENTS: Events = [
    &[
        "lifecycle: Suspended Migrated",
        "lifecycle: Suspended Post-copy",
        "lifecycle: Stopped Migrated",
        "job-completed:",
    ],
    &[
        "lifecycle: Started Migrated",
        "lifecycle: Resumed Post-copy",
        "lifecycle: Resumed Migrated",
    ],
];

/// A qcow2 image on both hosts, with a file system and numbered pages.
pub(crate) fn file_system(env: &TestEnv) -> Disk {
    let content = DiskContent::FileSystem {
        mib: 24,
        blocks_mib: 4,
    };
    Disk::new(DiskImage::new(env.lab(), "disk", DiskFormat::Qcow2, content).unwrap())
}

/// Two hosts with libvirt, and the folder of a test that moves domains between them by hikkoshi.
pub(crate) struct LibvirtTest {
    pub(crate) hosts: LibvirtHosts,
    pub(crate) env: TestEnv,
}

impl LibvirtTest {
    /// Starts the hosts. `None`: hikkoshi was built without libvirt.
    pub(crate) fn start() -> Option<Self> {
        built_with_libvirt().then(|| {
            let env = TestEnv::new();
            Self {
                hosts: LibvirtHosts::start(env.lab()).unwrap(),
                env,
            }
        })
    }

    /// The source, and the destination.
    pub(crate) fn hosts(&self) -> [&LibvirtHost; 2] {
        [&self.hosts.source, &self.hosts.destination]
    }

    /// Boots a domain that a client uses.
    pub(crate) fn served(&self) -> Served<'_> {
        Served::boot(&self.hosts, &self.env)
    }
}

/// A domain with a disk, a card on the bridge, a terminal and a client that sends all the time.
pub(crate) struct Served<'h> {
    env: &'h TestEnv,
    hosts: [&'h LibvirtHost; 2],
    domain: Domain<'h>,
    disk: Disk,
    client: DatagramClient,
}

impl<'h> Served<'h> {
    pub(crate) fn boot(hosts: &'h LibvirtHosts, env: &'h TestEnv) -> Self {
        let disk = file_system(env);
        let workload = Workload::verify(32)
            .with_server(PORT)
            .option("every_ms", 200);
        let config = DomainConfig::new("guest", workload)
            .file_system(disk.clone())
            .bridge(LibvirtHosts::BRIDGE)
            .console(DomainConsole::Terminal);
        let domain = Domain::boot(hosts, config).unwrap();
        let server = format!("{}:{PORT}", GuestNetwork::GUEST).parse().unwrap();
        let pace = Pace::FixedTimes(INTERVAL);
        let client = DatagramClient::start(hosts.network().client(), server, 1, pace).unwrap();
        assert!(client.wait_answers(20, LONG), "the guest does not answer");
        Self {
            env,
            hosts: [&hosts.source, &hosts.destination],
            domain,
            disk,
            client,
        }
    }

    /// The host where the domain is, and the other one.
    pub(crate) fn hosts(&self) -> [&'h LibvirtHost; 2] {
        self.hosts
    }

    /// Starts a move to the other host.
    pub(crate) fn start_move(&self, plan: &DomainPlan) -> DomainMove<'h> {
        DomainMove::start(self.env, &self.domain, self.hosts, plan)
    }

    /// Checks that the domain has moved to the other host, and is healthy there.
    pub(crate) fn assert_arrived(&mut self) {
        self.hosts.reverse();
        self.assert_here();
    }

    /// Checks that the domain runs where it was, and is healthy there.
    pub(crate) fn assert_here(&mut self) {
        let [here, there] = self.hosts;
        assert_eq!(here.state("guest").unwrap(), "running");
        assert_eq!(there.state("guest").unwrap(), "absent");
        self.domain.open_terminal(here).unwrap();
        assert_healthy(&self.domain, here);
    }

    /// Moves the domain to the other host, and checks it there, from inside and from outside.
    pub(crate) fn assert_moved(&mut self, how: How, expected: Events) -> Option<JsonReport> {
        let [_, to] = self.hosts;
        let events = self.hosts.map(|host| DomainEvents::record(host).unwrap());
        let report = how.moves(self.env, &self.domain, self.hosts);
        let events = events.map(|events| events.of_domain("guest").unwrap());
        self.domain.open_terminal(to).unwrap();
        assert_healthy(&self.domain, to);
        assert!(
            self.client.wait_answers(20, LONG),
            "the guest does not answer"
        );
        log(format!(
            "{how:?}: {} | {}",
            events[0].join(", "),
            events[1].join(", ")
        ));
        for (events, expected) in events.iter().zip(expected) {
            // How many rounds there are depends on the guest.
            let round = |event: &&String| event.starts_with("migration-iteration");
            // libvirt 12.9 reports by virsh's migrations that QEMU ends, too.
            let end = |event: &&String| event.starts_with("lifecycle: Shutdown Finished");
            let events = events.iter().filter(|event| !round(event) && !end(event));
            let events: Vec<_> = events.collect();
            assert_eq!(events, expected, "{how:?}");
        }
        self.hosts.reverse();
        report
    }

    /// Checks that the guest answers its client, without its daemon.
    pub(crate) fn assert_answers(&self) {
        assert!(
            self.client.wait_answers(20, LONG),
            "the guest does not answer"
        );
    }

    /// Ends the domain, checks its disk, and returns the number of lost datagrams.
    pub(crate) fn end(self) -> usize {
        let [at, _] = self.hosts;
        let datagrams = self.client.finish().unwrap();
        // What the guest itself has received tells on which way a datagram was lost.
        let lines = self.domain.console().lines();
        let received = lines.iter().rev().find_map(|line| match &line.report {
            GuestReport::Serve(serve) => Some(serve),
            _ => None,
        });
        log(format!("{datagrams:?}, the guest: {received:?}"));
        self.domain.destroy(at).unwrap();
        self.disk.image().check().unwrap();
        datagrams.lost.len()
    }
}

/// Makes the guest check all of its memory and its disk on this host.
pub(crate) fn assert_healthy(domain: &Domain<'_>, host: &LibvirtHost) {
    let verdict = domain.sweep(host, LONG).unwrap();
    assert!(verdict.ok && verdict.bad == 0, "{verdict:?}");
}

/// What describes a domain to its users.
const DESCRIPTION: &str = "<title>The guest of a test</title>\
     <description>It is moved &amp; checked</description>\
     <metadata><owner:owner xmlns:owner='https://example.org/owner'>someone</owner:owner></metadata>";

/// Memory may be plugged.
const PLUGGABLE: &str = "<maxMemory slots='2' unit='MiB'>512</maxMemory>\
     <cpu><numa><cell id='0' cpus='0' memory='256' unit='MiB'/></numa></cpu>";

/// What the workload uses, most of it after the memory was plugged, and so of that memory first.
const GROWN_MIB: u64 = 160;

const DIMM: &str = "<memory model='dimm'><target><size unit='MiB'>128</size><node>0</node></target>\
     </memory>";

/// Moves a domain with several disks, with plugged memory that the guest uses, and with a title and
/// metadata. Its configuration is kept.
pub(crate) fn rich_domain_is_moved(how: How) {
    let env = TestEnv::new();
    let hosts = LibvirtHosts::start(env.lab()).unwrap();
    let (source, destination) = (&hosts.source, &hosts.destination);
    let blocks = |name, format| {
        let content = DiskContent::Blocks { mib: 4 };
        Disk::new(DiskImage::new(env.lab(), name, format, content).unwrap())
    };
    let disks = [
        file_system(&env),
        blocks("second", DiskFormat::Qcow2),
        blocks("third", DiskFormat::Raw),
    ];
    let workload = Workload::verify(16)
        .grow(64, GROWN_MIB)
        .option("every_ms", 200);
    let mut config = DomainConfig::new("guest", workload)
        .elements(DESCRIPTION)
        .elements(PLUGGABLE)
        .memory_mib(256)
        .file_system(disks[0].clone())
        .persistent();
    for disk in &disks[1..] {
        config = config.disk(disk.clone());
    }
    let domain = Domain::boot(&hosts, config).unwrap();
    std::fs::write(source.folder().join("dimm.xml"), DIMM).unwrap();
    let plug = ["attach-device", "guest", "/srv/host/dimm.xml", "--live"];
    source.virsh(&plug).unwrap();
    let in_use = |report: &GuestReport| match report {
        GuestReport::Verify(verify) => (verify.pages >= GROWN_MIB * 256).then_some(()),
        _ => None,
    };
    domain
        .wait_report(source, "plugged memory in use", 0, LONG, in_use)
        .unwrap();
    assert_healthy(&domain, source);
    let before = description(source);
    how.moves(&env, &domain, [source, destination]);
    assert_eq!(description(destination), before);
    // The source has no configuration of it any more, and the destination has one.
    assert_eq!(
        source.virsh(&["list", "--all", "--name"]).unwrap().trim(),
        ""
    );
    let persistent = destination.virsh(&["list", "--all", "--persistent", "--name"]);
    assert_eq!(persistent.unwrap().trim(), "guest");
    if let How::Hikkoshi(_, options) = how {
        let autostart = destination.virsh(&["list", "--all", "--autostart", "--name"]);
        let expected = options.contains(&"--autostart").then_some("guest");
        assert_eq!(autostart.unwrap().trim(), expected.unwrap_or_default());
    }
    assert_healthy(&domain, destination);
    domain.destroy(destination).unwrap();
    for disk in &disks {
        disk.image().check().unwrap();
    }
}

/// How a host's daemon describes the domain: title, metadata, memory and disks.
fn description(host: &LibvirtHost) -> Vec<String> {
    let metadata = ["metadata", "guest", "--uri", "https://example.org/owner"];
    let xml = host.virsh(&["dumpxml", "guest", "--migratable"]).unwrap();
    // What libvirt assigns on each host.
    let kept = |line: &&str| {
        !["<seclabel", "<label>", "<imagelabel>", "</seclabel"]
            .iter()
            .any(|part| line.contains(part))
    };
    let mut description: Vec<_> = xml
        .lines()
        .filter(kept)
        .map(|line| line.trim().to_owned())
        .collect();
    description.push(host.virsh(&["desc", "guest", "--title"]).unwrap());
    description.push(host.virsh(&metadata).unwrap());
    description
}

/// Moves the Debian guest while its client checks redis's answers.
pub(crate) fn debian_is_moved(how: How) {
    let env = TestEnv::new();
    let hosts = LibvirtHosts::start(env.lab()).unwrap();
    let disk = |name, content| {
        Disk::new(DiskImage::new(env.lab(), name, DiskFormat::Qcow2, content).unwrap())
    };
    let disks = [
        disk("debian", DiskContent::Debian),
        disk("blocks", DiskContent::Blocks { mib: 64 }),
    ];
    let workload = Workload::verify(32)
        .rate(5000)
        .in_debian(40)
        .option("every_ms", 200);
    let config = disks.iter().fold(
        DomainConfig::new("guest", workload)
            .memory_mib(512)
            .cpus(2)
            .bridge(LibvirtHosts::BRIDGE),
        |config, disk| config.disk(disk.clone()),
    );
    let domain = Domain::boot(&hosts, config).unwrap();
    let client = RedisLoad::start(hosts.network());
    client.wait_answers(300);
    how.moves(&env, &domain, [&hosts.source, &hosts.destination]);
    // The same connection.
    client.wait_answers(300);
    assert_healthy(&domain, &hosts.destination);
    let longest = client.finish();
    log(format!(
        "{how:?}: longest response time {} ms",
        longest.as_millis()
    ));
    domain.destroy(&hosts.destination).unwrap();
    for disk in &disks {
        disk.image().check().unwrap();
    }
}
