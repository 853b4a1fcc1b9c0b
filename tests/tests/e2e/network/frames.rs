//! Frames that arrive for the guest during the switchover: no datagram of a client is lost.
#![allow(clippy::unwrap_used)] // a test's failure is the message

use super::guests::Client;
use hikkoshi_lab::{
    DatagramClient, Datagrams, GuestNetwork, GuestReport, Namespace, Nic, Pace, QemuVersion, Serve,
    VmConfig, Workload,
};
use hikkoshi_network_frames::{Captured, MacAddress, announcement};
use hikkoshi_tests::{
    Guest, JsonReport, LONG, MigrationPlan, TestEnv, TransmittedFrames, Transport, log,
};
use std::collections::HashSet;
use std::time::Duration;

/// The time between two datagrams. In the shortest downtime there are several.
const INTERVAL: Duration = Duration::from_millis(5);

/// The time between two datagrams of one of several clients.
const SLOWER: Duration = Duration::from_millis(20);

/// The guest's port.
pub(super) const PORT: u16 = 7000;

/// A guest with clients that send datagrams to it.
pub(super) struct Setup<'n> {
    network: &'n GuestNetwork,
    config: VmConfig,
    /// Where each is, the guest's address there, and when it sends.
    clients: Vec<(&'n Namespace, &'static str, Pace)>,
    /// Whether another client sends lines over TCP.
    lines: bool,
    arguments: &'static [&'static str],
    taps: Taps,
    engines: Engines,
}

/// How QEMU gets its tap devices.
#[derive(Clone, Copy, Debug)]
enum Taps {
    /// QEMU opens them.
    Named,
    /// QEMU gets descriptors, as from libvirt.
    Passed,
    /// QEMU gets descriptors, and is not in their network namespace.
    PassedFromNamespace,
}

impl Taps {
    /// The machine's configuration on a host.
    fn on(self, config: VmConfig, host: &Namespace) -> VmConfig {
        match self {
            Self::Named => config.namespace(host),
            Self::Passed => config.namespace(host).pass_taps_of(host),
            Self::PassedFromNamespace => config.pass_taps_of(host),
        }
    }
}

/// Where the engines run.
#[derive(Clone, Copy, Debug)]
enum Engines {
    /// In the network namespaces of the tap devices: hosts.
    InNamespaces,
    /// In a common namespace, which has none of the tap devices: with libvirt, or in containers.
    Outside,
}

/// What came of a guest's move.
pub(super) struct Moved {
    /// Of each client.
    clients: Vec<Datagrams>,
    /// What the guest has received.
    guest: Serve,
    pub(super) report: JsonReport,
    /// What `migrate` printed on standard error.
    stderr: String,
}

fn workload() -> Workload {
    Workload::verify(32)
        .rate(1000)
        .with_server(PORT)
        .option("every_ms", 200)
}

fn config(network: &GuestNetwork) -> VmConfig {
    let config = VmConfig::new().workload(workload());
    network.nics().fold(config, VmConfig::nic)
}

impl<'n> Setup<'n> {
    /// A client that waits for answers, and one that sends at fixed times.
    fn two_clients(network: &'n GuestNetwork) -> Self {
        let at = |pace| (network.client(), GuestNetwork::GUEST, pace);
        Self {
            network,
            config: config(network),
            clients: vec![
                at(Pace::OneAfterAnother(INTERVAL)),
                at(Pace::FixedTimes(INTERVAL)),
            ],
            lines: false,
            arguments: &[],
            taps: Taps::Named,
            engines: Engines::InNamespaces,
        }
    }

    /// These clients, and one that sends lines, of another guest.
    pub(super) fn with_lines(network: &'n GuestNetwork, config: VmConfig) -> Self {
        Self {
            config,
            lines: true,
            ..Self::two_clients(network)
        }
    }

    /// Moves the guest while the clients send.
    pub(super) fn moved(self, mode: &'static str) -> Moved {
        let env = TestEnv::new();
        let (from, to) = (self.network.source(), self.network.destination());
        let there = self.config.clone().version(QemuVersion::V10_0);
        let there = self.taps.on(there, to);
        let mut guest = Guest::boot(&env, self.taps.on(self.config, from));
        let mut clients = Vec::new();
        for (number, (namespace, address, pace)) in (1..).zip(self.clients) {
            let server = format!("{address}:{PORT}").parse().unwrap();
            let client = DatagramClient::start(namespace, server, number, pace).unwrap();
            // The guest's address is known before more datagrams come without waiting.
            assert!(client.wait_answers(20, LONG), "the guest does not answer");
            clients.push((pace, client));
        }
        let lines = self.lines.then(|| Client::start(self.network));
        if let Some(lines) = &lines {
            lines.wait_answers(20);
        }
        let address = format!("{}:7100", GuestNetwork::DESTINATION);
        let plan = MigrationPlan::new(mode)
            .migrate_args(self.arguments)
            .destination_config(there);
        let plan = match self.engines {
            Engines::InNamespaces => plan
                .transport(Transport::Address(address))
                .between_namespaces(from, to),
            Engines::Outside => plan,
        };
        let (exits, finished) = guest.start_migration(&plan).wait();
        let report = guest.complete_migration(&exits, finished, "running");
        for (pace, client) in &clients {
            // The other kind ends where a datagram is lost.
            if matches!(pace, Pace::FixedTimes(_)) {
                assert!(client.wait_answers(20, LONG), "the guest does not answer");
            }
        }
        if let Some(lines) = lines {
            lines.wait_answers(20);
            lines.finish();
        }
        let clients = clients.into_iter().map(|(_, client)| client.finish());
        let clients: Vec<_> = clients.collect::<Result<_, _>>().unwrap();
        let moved = Moved {
            guest: received(&guest, clients.iter().map(|client| client.sent).sum()),
            clients,
            report,
            stderr: exits.migrate.stderr,
        };
        log(format!(
            "{mode} {:?}: {:?}, the guest {:?}, {:?}",
            self.arguments, moved.clients, moved.guest, moved.report.frames
        ));
        moved
    }
}

/// What the guest has received, after all that was sent.
fn received(guest: &Guest<'_>, sent: u32) -> Serve {
    let mut lines = 0;
    let first = guest.vm().console().len();
    guest
        .vm()
        .wait_report("what the guest has received", first, LONG, |report| {
            let GuestReport::Serve(serve) = report else {
                return None;
            };
            // The first line may be older than the last datagram.
            lines += 1;
            (lines > 1 || serve.datagrams == u64::from(sent)).then(|| serve.clone())
        })
        .unwrap()
}

impl Moved {
    /// Checks that no datagram was lost, on the way there or back, and hardly one came twice: at
    /// most two for each of `queues`.
    fn assert_nothing_lost(&self, queues: usize) {
        self.assert_all_answered();
        let Self { clients, guest, .. } = self;
        let repeated: usize = clients.iter().map(|client| client.repeated.len()).sum();
        assert!(repeated <= 2 * queues, "{clients:?}, {guest:?}");
    }

    /// Checks that no datagram was lost, on the way there or back.
    pub(super) fn assert_all_answered(&self) {
        let Self {
            clients,
            guest,
            report,
            ..
        } = self;
        assert_eq!(guest.missing, 0, "{guest:?}, {report:?}");
        for client in clients {
            assert!(client.lost.is_empty(), "{client:?}, {guest:?}, {report:?}");
        }
        let frames = report.frames.unwrap();
        assert!(frames.kept > 0, "{frames:?}");
        assert_eq!(frames.kept, frames.delivered, "{frames:?}");
        assert_eq!(frames.dropped, 0, "{frames:?}");
    }
}

fn nothing_is_lost(mode: &'static str) {
    let network = GuestNetwork::new().unwrap();
    let moved = Setup::two_clients(&network).moved(mode);
    moved.assert_nothing_lost(1);
}

#[test]
#[ignore = "one of its kind runs in CI: make matrix"]
fn no_datagram_is_lost_in_precopy() {
    nothing_is_lost("precopy");
}

#[test]
fn no_datagram_is_lost_in_hybrid() {
    nothing_is_lost("hybrid");
}

#[test]
#[ignore = "one of its kind runs in CI: make matrix"]
fn no_datagram_is_lost_in_postcopy() {
    nothing_is_lost("postcopy");
}

/// The engines enter the namespace of each tap device for the packet sockets only.
#[test]
#[ignore = "one of its kind runs in CI: make matrix"]
fn no_datagram_is_lost_if_the_engines_are_outside_of_the_network_namespaces() {
    let network = GuestNetwork::new().unwrap();
    let setup = Setup {
        engines: Engines::Outside,
        ..Setup::two_clients(&network)
    };
    setup.moved("hybrid").assert_nothing_lost(1);
}

/// A device's namespace is asked from the device: QEMU's has none of that name.
#[test]
#[ignore = "one of its kind runs in CI: make matrix"]
fn no_datagram_is_lost_on_a_device_that_was_passed_to_qemu_from_another_namespace() {
    let network = GuestNetwork::new().unwrap();
    let setup = Setup {
        taps: Taps::PassedFromNamespace,
        engines: Engines::Outside,
        ..Setup::two_clients(&network)
    };
    setup.moved("hybrid").assert_nothing_lost(1);
}

#[test]
#[ignore = "one of its kind runs in CI: make matrix"]
fn without_kept_frames_datagrams_are_lost() {
    let network = GuestNetwork::new().unwrap();
    let setup = Setup {
        arguments: &["--no-keep-frames"],
        ..Setup::two_clients(&network)
    };
    let moved = setup.moved("hybrid");
    assert_eq!(moved.report.frames, None);
    assert!(!moved.clients[1].lost.is_empty(), "{:?}", moved.clients);
}

/// The kernel chooses a queue for each client's datagrams, so eight clients hardly ever use only
/// one of four.
fn nothing_is_lost_with_four_queues(taps: Taps) {
    const QUEUES: u32 = 4;
    let network = GuestNetwork::with_queues(QUEUES).unwrap();
    let client = (
        network.client(),
        GuestNetwork::GUEST,
        Pace::FixedTimes(SLOWER),
    );
    let setup = Setup {
        config: config(&network).cpus(QUEUES),
        clients: vec![client; 8],
        taps,
        ..Setup::two_clients(&network)
    };
    let moved = setup.moved("hybrid");
    moved.assert_nothing_lost(4);
}

#[test]
#[ignore = "as with passed queues: make matrix"]
fn no_datagram_is_lost_on_a_card_with_four_queues() {
    nothing_is_lost_with_four_queues(Taps::Named);
}

#[test]
#[ignore = "one of its kind runs in CI: make matrix"]
fn no_datagram_is_lost_on_four_queues_that_were_passed_to_qemu() {
    nothing_is_lost_with_four_queues(Taps::Passed);
}

/// The address that the guest gives its card, and the number of its VLAN.
const CHANGED: MacAddress = [2, 0, 0, 0, 0, 0x77];
const VLAN: u16 = 5;

/// Switches have to know where the guest is before the guest answers from there. QEMU itself
/// announces only the address that the card was configured with.
///
/// Only between these versions are the guest's VLANs known: QEMU 10.0.2 reports all of them at the
/// source, and QEMU 7.2 none after it has loaded a guest (docs/frames.md).
#[test]
fn all_addresses_and_vlans_are_announced_before_kept_frames_are_delivered() {
    let network = GuestNetwork::new().unwrap();
    let setup = Setup {
        taps: Taps::Passed,
        ..with_vlan(&network, QemuVersion::V7_2)
    };
    let nic = network.nic();
    let devices = [nic.tap.as_str(), GuestNetwork::UPLINK];
    let recorder = TransmittedFrames::record(network.destination(), &devices);
    let source_recorder = TransmittedFrames::record(network.source(), &devices[..1]);
    let moved = setup.moved("postcopy");
    moved.assert_nothing_lost(1);
    let warning = "has set VLANs on its network card virtio-net-pci.0 (VLAN 5): if";
    assert!(moved.stderr.contains(warning), "{}", moved.stderr);
    let [to_guest, to_network] = recorder.finish().try_into().unwrap();
    let at_source: HashSet<_> = source_recorder.finish()[0]
        .iter()
        .map(|frame| frame.frame.bytes.clone())
        .collect();
    let first = |frames: &[Captured], wanted: &dyn Fn(&[u8]) -> bool| {
        let found = frames.iter().filter(|frame| wanted(&frame.frame.bytes));
        found.map(|frame| frame.at).min()
    };
    // Both hosts' devices have sent what was kept. Others can arrive between two announcements.
    let is_kept = |bytes: &[u8]| is_datagram(bytes) && at_source.contains(bytes);
    let delivered = first(&to_guest, &is_kept).unwrap();
    let configured = [0x52, 0x54, 0, 0x12, 0x34, 0x56];
    assert_eq!(nic.mac, "52:54:00:12:34:56");
    for (address, vlan) in [(configured, None), (CHANGED, None), (CHANGED, Some(VLAN))] {
        let wanted = announcement(address, vlan);
        let announced = first(&to_network, &|bytes| bytes == wanted);
        assert!(
            announced.is_some_and(|at| at < delivered),
            "{address:02x?} in VLAN {vlan:?}: announced at {announced:?}, first frame {delivered}"
        );
    }
}

/// QEMU 10.0.2 does not know the VLANs of this guest, so hikkoshi announces none of them. Linux
/// announces itself in each of its VLANs when QEMU asks the guest for that.
#[test]
#[ignore = "one of its kind runs in CI: make matrix"]
fn a_linux_guest_announces_itself_in_vlans_that_qemu_does_not_know() {
    let network = GuestNetwork::new().unwrap();
    let setup = with_vlan(&network, QemuVersion::V10_0);
    let recorder = TransmittedFrames::record(network.destination(), &[GuestNetwork::UPLINK]);
    setup.moved("hybrid").assert_nothing_lost(1);
    assert!(
        recorder.wait(0, LONG, is_advertisement_in_vlan),
        "the guest has not announced its address in its VLAN"
    );
    let [frames] = recorder.finish().try_into().unwrap();
    let announced = (1..4095).filter(|vlan| {
        let wanted = announcement(CHANGED, Some(*vlan));
        frames.iter().any(|frame| frame.frame.bytes == wanted)
    });
    assert_eq!(announced.count(), 0, "QEMU reports all VLANs");
}

/// A guest that has changed its card's address, and has a VLAN interface.
fn with_vlan(network: &GuestNetwork, version: QemuVersion) -> Setup<'_> {
    let workload = workload()
        .option("mac", "02:00:00:00:00:77")
        .option("vlan", VLAN);
    Setup {
        config: config(network).workload(workload).version(version),
        ..Setup::two_clients(network)
    }
}

/// Whether the guest has sent this in its VLAN to say where its IPv6 address is: a neighbor
/// advertisement (RFC 4861). No station asks for it there.
fn is_advertisement_in_vlan(bytes: &[u8]) -> bool {
    let [high, low] = VLAN.to_be_bytes();
    bytes.get(6..12) == Some(&CHANGED)
        && bytes.get(12..18) == Some(&[0x81, 0, high, low, 0x86, 0xdd])
        && bytes.get(58) == Some(&136)
}

/// Whether this is a datagram to the guest's port: IPv4 without options.
fn is_datagram(bytes: &[u8]) -> bool {
    let at = |index: usize| bytes.get(index..index + 2);
    at(12) == Some(&[8, 0]) && bytes.get(23) == Some(&17) && at(36) == Some(&PORT.to_be_bytes())
}

#[test]
#[ignore = "one of its kind runs in CI: make matrix"]
fn no_datagram_is_lost_on_two_cards() {
    nothing_is_lost_on_two_cards(&["hybrid"]);
}

#[test]
#[ignore = "other modes: make matrix"]
fn no_datagram_is_lost_on_two_cards_in_other_modes() {
    nothing_is_lost_on_two_cards(&["precopy", "postcopy"]);
}

/// Each card has a network of its own, so a frame that is delivered to the other card is lost.
fn nothing_is_lost_on_two_cards(modes: &[&'static str]) {
    for mode in modes {
        let network = GuestNetwork::two().unwrap();
        let addresses = [GuestNetwork::GUEST, GuestNetwork::SECOND_GUEST];
        let clients = network.clients().iter().zip(addresses);
        let setup = Setup {
            clients: clients
                .map(|(client, address)| (client, address, Pace::FixedTimes(INTERVAL)))
                .collect(),
            ..Setup::two_clients(&network)
        };
        let moved = setup.moved(mode);
        moved.assert_nothing_lost(2);
    }
}

/// Where QEMU connects cards that have no tap device, and what it calls that.
const WITHOUT_TAP: [(&str, &str); 3] = [
    ("user", "user"),
    (
        "socket",
        "socket,udp=127.0.0.1:7201,localaddr=127.0.0.1:7202",
    ),
    (
        "stream",
        "stream,server=on,addr.type=inet,addr.host=127.0.0.1,addr.port=7203",
    ),
];

#[test]
#[ignore = "one of its kind runs in CI: make matrix"]
fn frames_of_cards_without_a_tap_device_are_not_kept() {
    let network = GuestNetwork::new().unwrap();
    let setup = Setup::two_clients(&network);
    let cards = WITHOUT_TAP.iter().flat_map(|(kind, backend)| {
        let card = format!("virtio-net-pci,id=on-{kind},netdev={kind}0,romfile=");
        let backend = backend.replacen(kind, &format!("{kind},id={kind}0"), 1);
        ["-netdev".to_owned(), backend, "-device".to_owned(), card]
    });
    let setup = Setup {
        config: setup.config.arguments(cards),
        ..setup
    };
    let moved = setup.moved("hybrid");
    moved.assert_nothing_lost(1);
    for (kind, _) in WITHOUT_TAP {
        let said = format!(
            "are lost for its network card on-{kind} (connected to: {kind}): it has no tap device"
        );
        assert!(moved.stderr.contains(&said), "{}", moved.stderr);
    }
}

/// The card has no queues and no filter that QEMU tells of.
#[test]
#[ignore = "needs the kernel with the drivers of all devices: make matrix"]
fn no_datagram_is_lost_on_an_e1000e() {
    for mode in ["precopy", "hybrid", "postcopy"] {
        let network = GuestNetwork::new().unwrap();
        let nic = Nic {
            model: "e1000e",
            ..network.nic()
        };
        let config = VmConfig::new().workload(workload()).nic(nic);
        let setup = Setup {
            config: config.all_drivers().unwrap(),
            ..Setup::two_clients(&network)
        };
        setup.moved(mode).assert_nothing_lost(1);
    }
}
