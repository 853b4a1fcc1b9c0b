//! A guest's network card, and clients that send datagrams to it before, during and after each
//! move.

use super::probe::Probe;
use crate::{LONG, MigrationPlan, Transport};
use hikkoshi_lab::{DatagramClient, GuestNetwork, Nic, Pace, Vm, VmConfig, Workload};
use std::time::Duration;

/// The guest's port.
const PORT: u16 = 7000;

/// So many that the kernel hardly ever puts all of them into one of four queues.
const CLIENTS: u32 = 8;

/// The time between two datagrams of a client.
const INTERVAL: Duration = Duration::from_millis(20);

/// Answers of each client that a probe waits for.
const ANSWERS: usize = 20;

/// The workload of a guest with clients.
pub(super) fn workload() -> Workload {
    Workload::verify(32).rate(5_000).with_server(PORT)
}

/// The network card of a guest with clients.
#[derive(Clone, Copy, Debug)]
pub(super) struct Card {
    /// QEMU's name of its type.
    pub(super) model: &'static str,
    /// The guest has as many processors.
    pub(super) queues: u32,
}

/// Two hosts, and the clients.
#[derive(Debug)]
pub(super) struct Network {
    model: &'static str,
    hosts: GuestNetwork,
    clients: Vec<DatagramClient>,
}

impl Network {
    /// A network for that card.
    pub(super) fn new(card: Card) -> Self {
        Self {
            model: card.model,
            hosts: GuestNetwork::with_queues(card.queues).unwrap(),
            clients: Vec::new(),
        }
    }

    /// Adds the card to a machine, which is on the source's host.
    pub(super) fn connect(&self, config: VmConfig) -> VmConfig {
        let model = self.model;
        let nic = Nic {
            model,
            ..self.hosts.nic()
        };
        config.nic(nic).namespace(self.hosts.source())
    }

    /// Moves the guest between the hosts: there, and every other trip back.
    pub(super) fn between_hosts(&self, plan: MigrationPlan, trip: usize) -> MigrationPlan {
        let mut hosts = [
            (self.hosts.source(), GuestNetwork::SOURCE),
            (self.hosts.destination(), GuestNetwork::DESTINATION),
        ];
        if trip % 2 == 1 {
            hosts.reverse();
        }
        let [(from, _), (to, address)] = hosts;
        plan.transport(Transport::Address(format!("{address}:7100")))
            .between_namespaces(from, to)
    }

    /// Ends the clients. On a busy host a guest can lose a datagram (docs/frames.md), so that is
    /// logged only; other tests check that none is lost.
    pub(super) fn finish(self) {
        for client in self.clients {
            let datagrams = client.finish().unwrap();
            if !datagrams.lost.is_empty() {
                crate::log(format!("{}: {datagrams:?}", self.model));
            }
        }
    }
}

impl Probe for Network {
    fn check(&mut self, _: &Vm) {
        if self.clients.is_empty() {
            let server = format!("{}:{PORT}", GuestNetwork::GUEST).parse().unwrap();
            let start = |number| {
                let pace = Pace::FixedTimes(INTERVAL);
                DatagramClient::start(self.hosts.client(), server, number, pace).unwrap()
            };
            self.clients = (1..=CLIENTS).map(start).collect();
        }
        for client in &self.clients {
            let answers = client.wait_answers(ANSWERS, LONG);
            assert!(answers, "the guest does not answer: {client:?}");
        }
    }
}
