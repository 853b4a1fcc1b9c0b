//! Frames that arrive for the guest during the switchover: no datagram of a client is lost.
#![allow(clippy::unwrap_used)] // a test's failure is the message

use hikkoshi_lab::{
    DatagramClient, Datagrams, GuestNetwork, Namespace, Pace, Report, Serve, VmConfig, Workload,
};
use hikkoshi_tests::{Guest, JsonReport, LONG, MigrationPlan, TestEnv, Transport, log};
use std::time::Duration;

/// The time between two datagrams. In the shortest downtime there are several.
const INTERVAL: Duration = Duration::from_millis(5);

/// The time between two datagrams of one of several clients.
const SLOWER: Duration = Duration::from_millis(20);

/// The guest's port.
const PORT: u16 = 7000;

/// A guest with clients that send datagrams to it.
struct Setup<'n> {
    network: &'n GuestNetwork,
    config: VmConfig,
    /// Where each is, the guest's address there, and when it sends.
    clients: Vec<(&'n Namespace, &'static str, Pace)>,
    arguments: &'static [&'static str],
    /// The engines run in QEMU's network namespaces, as on two hosts, or outside, as with libvirt
    /// or in containers.
    engines: Engines,
}

/// Where the engines run.
#[derive(Clone, Copy, Debug)]
enum Engines {
    /// In QEMU's network namespaces: hosts.
    InNamespaces,
    /// In a common namespace, which has none of the tap devices.
    Outside,
}

/// What came of a guest's move.
struct Moved {
    /// Of each client.
    clients: Vec<Datagrams>,
    /// What the guest has received.
    guest: Serve,
    report: JsonReport,
    /// What `migrate` printed on standard error.
    stderr: String,
}

fn config(network: &GuestNetwork) -> VmConfig {
    let workload = Workload::verify(32)
        .rate(1000)
        .with_server(PORT)
        .option("every_ms", 200);
    let config = VmConfig::new()
        .workload(workload)
        .namespace(network.source());
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
            arguments: &[],
            engines: Engines::InNamespaces,
        }
    }

    /// Moves the guest while the clients send.
    fn moved(self, mode: &'static str) -> Moved {
        let env = TestEnv::new();
        let there = self.config.clone().namespace(self.network.destination());
        let mut guest = Guest::boot(&env, self.config);
        let mut clients = Vec::new();
        for (number, (namespace, address, pace)) in (1..).zip(self.clients) {
            let server = format!("{address}:{PORT}").parse().unwrap();
            let client = DatagramClient::start(namespace, server, number, pace).unwrap();
            // The guest's address is known before more datagrams come without waiting.
            assert!(client.wait_answers(20, LONG), "the guest does not answer");
            clients.push((pace, client));
        }
        let address = format!("{}:7100", GuestNetwork::DESTINATION);
        let plan = MigrationPlan::new(mode).migrate_args(self.arguments);
        let plan = match self.engines {
            Engines::InNamespaces => plan
                .transport(Transport::Address(address))
                .between_namespaces(self.network.source(), self.network.destination()),
            Engines::Outside => plan.destination_config(there),
        };
        let (exits, finished) = guest.start_migration(&plan).wait();
        let report = guest.complete_migration(&exits, finished, "running");
        for (pace, client) in &clients {
            // The other kind ends where a datagram is lost.
            if matches!(pace, Pace::FixedTimes(_)) {
                assert!(client.wait_answers(20, LONG), "the guest does not answer");
            }
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
            let Report::Serve(serve) = report else {
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
        let repeated: usize = clients.iter().map(|client| client.repeated.len()).sum();
        assert!(repeated <= 2 * queues, "{clients:?}, {guest:?}");
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
fn no_datagram_is_lost_in_precopy() {
    nothing_is_lost("precopy");
}

#[test]
fn no_datagram_is_lost_in_hybrid() {
    nothing_is_lost("hybrid");
}

#[test]
fn no_datagram_is_lost_in_postcopy() {
    nothing_is_lost("postcopy");
}

/// The engines enter the namespace of each tap device for the packet sockets only.
#[test]
fn no_datagram_is_lost_if_the_engines_are_outside_of_the_network_namespaces() {
    let network = GuestNetwork::new().unwrap();
    let setup = Setup {
        engines: Engines::Outside,
        ..Setup::two_clients(&network)
    };
    setup.moved("hybrid").assert_nothing_lost(1);
}

#[test]
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
#[test]
fn no_datagram_is_lost_on_a_card_with_four_queues() {
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
        ..Setup::two_clients(&network)
    };
    let moved = setup.moved("hybrid");
    moved.assert_nothing_lost(4);
}

/// Each card has a network of its own, so a frame that is delivered to the other card is lost.
#[test]
fn no_datagram_is_lost_on_two_cards() {
    for mode in ["precopy", "postcopy", "hybrid"] {
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

#[test]
fn frames_of_a_card_without_a_tap_device_are_not_kept() {
    let network = GuestNetwork::new().unwrap();
    let setup = Setup::two_clients(&network);
    let setup = Setup {
        config: setup.config.arguments([
            "-netdev",
            "user,id=user0",
            "-device",
            "virtio-net-pci,id=second,netdev=user0,romfile=",
        ]),
        ..setup
    };
    let moved = setup.moved("hybrid");
    moved.assert_nothing_lost(1);
    let said = "are lost for its network card second (connected to: user): it has no tap device";
    assert!(moved.stderr.contains(said), "{}", moved.stderr);
}
