//! A row: a guest, its two machines, and what is expected of it.

use super::network::{self, Card, Network};
use super::outcome::{Outcome, Trip};
use super::probe::{Probe, Probed, screen};
use crate::guests::disk::disk_on;
use crate::{Guest, MigrationPlan, TestEnv, assert_refused, kvm_present};
use hikkoshi_account::Side;
use hikkoshi_lab::{DiskBus, VmConfig, Workload};
use std::fmt;
use std::path::Path;

/// The modes, in the table's order.
pub(super) const MODES: [&str; 3] = ["precopy", "hybrid", "postcopy"];

/// What is expected of a row.
#[derive(Clone, Copy, Debug)]
enum Expectation {
    /// Each trip succeeds.
    Moves,
    /// That side refuses the guest, with this part of the reason.
    Refused(Side, &'static str),
}

/// A guest, its two machines, and what is expected of it.
#[derive(Clone, Debug)]
pub struct Row {
    name: String,
    source: VmConfig,
    destination: VmConfig,
    /// How the guest sees its disk, if it has one.
    bus: Option<DiskBus>,
    all_drivers: bool,
    /// The device that the guest uses.
    probed: Option<Probed>,
    /// The guest's network card, if it has clients.
    card: Option<Card>,
    expectation: Expectation,
    /// A file without which this host cannot run the row, and what that means.
    requires: Option<(&'static str, &'static str)>,
    sample: bool,
    /// The modes by which it moves.
    modes: &'static [&'static str],
    /// A part of the reason for which it is refused in the other modes.
    other_modes: &'static str,
    /// Whether each mode moves it to the destination, and pre-copy back.
    back_by_precopy: bool,
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [source, destination] = self.sides();
        write!(f, "{}: {source} → {destination}", self.name)
    }
}

impl Row {
    /// A guest with a virtio disk that moves between two machines of this configuration.
    pub(super) fn new(name: impl Into<String>, config: VmConfig) -> Self {
        let workload = Workload::verify(32).rate(20_000).option("every_ms", 200);
        let config = config.workload(workload);
        Self {
            name: name.into(),
            destination: config.clone(),
            source: config,
            bus: Some(DiskBus::VirtioBlk),
            all_drivers: false,
            probed: None,
            card: None,
            expectation: Expectation::Moves,
            requires: None,
            sample: false,
            modes: &MODES,
            other_modes: "",
            back_by_precopy: false,
        }
    }

    /// Changes the destination.
    pub(super) fn to(mut self, change: impl FnOnce(VmConfig) -> VmConfig) -> Self {
        self.destination = change(self.destination);
        self
    }

    /// Changes both sides.
    pub(super) fn both(mut self, change: impl Fn(VmConfig) -> VmConfig) -> Self {
        self.source = change(self.source);
        self.destination = change(self.destination);
        self
    }

    /// Changes the workload, on both sides.
    pub(super) fn workload(self, workload: Workload) -> Self {
        let workload = workload.option("every_ms", 200);
        self.both(|config| config.workload(workload.clone()))
    }

    /// Makes the guest use that device.
    pub(super) fn probe(mut self, probed: Probed) -> Self {
        self.probed = Some(probed);
        self
    }

    /// Adds a network card, and clients.
    pub(super) fn clients(mut self, card: Card) -> Self {
        self.card = Some(card);
        self.both(|config| config.cpus(card.queues))
            .workload(network::workload())
    }

    /// Adds processors that are plugged once the guest runs.
    pub(super) fn hot_cpus(self, cpus: u32) -> Self {
        self.both(|config| config.hot_cpus(cpus))
    }

    /// Changes how the guest sees its disk.
    pub(super) fn bus(mut self, bus: DiskBus) -> Self {
        self.bus = Some(bus);
        self
    }

    /// Removes the disk.
    pub(super) fn without_disk(mut self) -> Self {
        self.bus = None;
        self
    }

    /// Boots the kernel with the drivers of all devices.
    pub(super) fn all_drivers(mut self) -> Self {
        self.all_drivers = true;
        self
    }

    /// Expects that side to refuse the guest, with `part` in the reason.
    pub(super) fn refused(mut self, side: Side, part: &'static str) -> Self {
        self.expectation = Expectation::Refused(side, part);
        self
    }

    /// Moves it by pre-copy, and expects that the other modes are refused, with `part` in the
    /// reason.
    pub(super) fn only_precopy(mut self, part: &'static str) -> Self {
        self.modes = &["precopy"];
        self.other_modes = part;
        self
    }

    /// Moves it to the destination by each mode, and back by pre-copy.
    pub(super) fn back_by_precopy(mut self) -> Self {
        self.back_by_precopy = true;
        self
    }

    /// Runs the row only where this file exists; `without` is what the host does not have.
    pub(super) fn requires(mut self, file: &'static str, without: &'static str) -> Self {
        self.requires = Some((file, without));
        self
    }

    /// Makes `make test` run this row, too.
    pub(super) fn sample(mut self) -> Self {
        self.sample = true;
        self
    }

    /// Whether `make test` runs this row.
    pub fn is_sample(&self) -> bool {
        self.sample
    }

    /// What is special about the guest.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Both machines, for the table.
    pub(super) fn sides(&self) -> [String; 2] {
        [&self.source, &self.destination].map(|config| {
            let (version, memory) = (config.qemu_version(), config.memory());
            format!("{version}, {}, {memory}", config.machine_type())
        })
    }

    /// Runs the row.
    ///
    /// # Panics
    /// When a check fails.
    pub(super) fn run(&self) -> Outcome {
        if let Some((file, without)) = self.requires
            && !Path::new(file).exists()
        {
            return Outcome::NotTested(without);
        }
        if self.source.uses_kvm() && !kvm_present() {
            return Outcome::NotTested("the host has no KVM");
        }
        let drivers = |config: &VmConfig| match self.all_drivers {
            true => config.clone().all_drivers().unwrap(),
            false => config.clone(),
        };
        let (source, destination) = (drivers(&self.source), drivers(&self.destination));
        let env = TestEnv::new();
        let disk = self.bus.map(|bus| disk_on(&env, bus));
        let [source, destination] = [source, destination].map(|config| match &disk {
            Some(disk) => config.file_system(disk.clone()),
            None => config,
        });
        let network = self.card.map(Network::new);
        let [source, destination] = [source, destination].map(|config| match &network {
            Some(network) => network.connect(config),
            None => config,
        });
        match self.expectation {
            Expectation::Moves => self.moves(&env, source, &destination, network),
            Expectation::Refused(side, part) => {
                let config = match side {
                    Side::Source => source,
                    Side::Destination => destination.incoming(),
                };
                refuses(&env, config, side, part);
                Outcome::Refused
            }
        }
    }

    fn moves(
        &self,
        env: &TestEnv,
        source: VmConfig,
        destination: &VmConfig,
        mut network: Option<Network>,
    ) -> Outcome {
        let back = source.clone();
        let mut guest = Guest::boot_without_extra_disk(env, source);
        guest.vm().plug_dimm().unwrap();
        guest.vm().plug_processors().unwrap();
        let mut probe = self.probed.map(Probed::probe);
        let mut check = |guest: &Guest<'_>, network: &mut Option<Network>| {
            let network = network.as_mut().map(|network| network as &mut dyn Probe);
            let probe = probe.as_deref_mut();
            probe
                .into_iter()
                .chain(network)
                .for_each(|probe| probe.check(guest.vm()));
        };
        check(&guest, &mut network);
        let mut trips = Vec::new();
        for (number, &mode) in self.modes.iter().enumerate() {
            let is_there = number % 2 == 1 && !self.back_by_precopy;
            let there = if is_there { &back } else { destination };
            let plan = MigrationPlan::new(mode).destination_config(there.clone());
            let plan = match &network {
                Some(network) => network.between_hosts(plan, number),
                None => plan,
            };
            // A source that refuses the guest leaves the destination waiting.
            let (exits, finished) = guest.start_migration(&plan).wait_for_source_first();
            let report = guest.complete_migration(&exits, finished, "running");
            trips.push(Trip::new(mode, &report));
            check(&guest, &mut network);
            if self.back_by_precopy {
                let plan = MigrationPlan::new("precopy").destination_config(back.clone());
                guest.migrate(&plan);
            }
        }
        for mode in MODES.iter().filter(|mode| !self.modes.contains(mode)) {
            refused_by_mode(&mut guest, mode, destination, self.other_modes);
        }
        if self.probed == Some(Probed::Screen) {
            move_paused(&mut guest, &back);
        }
        if let Some(network) = network {
            network.finish();
        }
        Outcome::Moved(trips)
    }
}

/// Moves a paused guest, so that both machines must show the same.
fn move_paused(guest: &mut Guest<'_>, there: &VmConfig) {
    guest.vm().stop().unwrap();
    let before = screen(guest.vm());
    let plan = MigrationPlan::new("hybrid").destination_config(there.clone());
    let (exits, finished) = guest.start_migration(&plan).wait();
    guest.complete_migration(&exits, finished, "paused");
    let after = screen(guest.vm());
    let differ = before.iter().zip(&after).filter(|(a, b)| a != b).count();
    assert!(
        before == after,
        "the screen is another: {differ} of {} bytes, {} now",
        before.len(),
        after.len()
    );
    guest.vm().cont().unwrap();
    guest.assert_healthy();
}

/// Asserts that the guest is refused when it is moved by this mode, and stays.
fn refused_by_mode(guest: &mut Guest<'_>, mode: &'static str, there: &VmConfig, part: &str) {
    let plan = MigrationPlan::new(mode).destination_config(there.clone());
    let (exits, finished) = guest.start_migration(&plan).wait_for_source_first();
    exits.assert_source(1, &[part]);
    guest.assert_stayed(finished, &format!("refused by {mode}"));
}

/// Asserts that one side refuses the guest.
fn refuses(env: &TestEnv, config: VmConfig, side: Side, part: &str) {
    let vm = config.start(env.lab(), "refused").unwrap();
    let qmp = vm.qmp_path().to_str().unwrap();
    let listen = env.unused_socket();
    let arguments = match side {
        Side::Source => vec!["migrate", "unix:/nowhere", "--qmp", qmp],
        Side::Destination => vec!["receive", "--listen", &listen, "--qmp", qmp],
    };
    assert_refused(&arguments, 1, &[part]);
}
