//! The testbed of one case: a working guest on the source host, a waiting QEMU on the destination
//! host, and the network between them.

mod disk;
mod domain;
mod network;

pub(crate) use disk::attach_debian;
pub(crate) use domain::{DomainHosts, DomainTestbed};
pub(crate) use network::Network;

use std::time::{Duration, Instant};

use hikkoshi_lab::{Event, GuestNetwork, GuestReport, Lab, LabError, Vm, VmConfig, web_initramfs};

use crate::args::Args;
use crate::error::BenchError;
use crate::plan::{Case, DISK_ARENA_MIB, NetworkKind, Workload};

/// How long the guest may take to print a line, or to check all of its pages.
pub(crate) const LONG: Duration = Duration::from_secs(60);
/// How long a migration may take until the switchover.
const SWITCH: Duration = Duration::from_secs(300);
pub(crate) const DESTINATION: &str = "destination";
/// A processor model with asynchronous page faults. (`host` also has registers that KVM does not
/// accept where it is virtualised in software.)
const NANO_PROCESSOR: [&str; 2] = ["-cpu", "qemu64,kvm-asyncpf-int=on"];

/// A working guest, its destination, and the network between the hosts.
#[derive(Debug)]
pub(crate) struct Testbed {
    pub lab: Lab,
    pub network: Network,
    pub source: Vm,
    pub destination: Vm,
    /// The guest's own network, if it has a network card.
    pub guest_network: Option<GuestNetwork>,
}

impl Testbed {
    /// Boots the guest, and waits until its workload runs.
    pub(crate) fn boot(case: &Case, args: &Args) -> Result<Self, BenchError> {
        let lab = Lab::new()?;
        let config = VmConfig::new()
            .ram(case.workload.ram())
            .cpus(case.workload.cpus())
            .version(case.system.qemu_version())
            .workload(case.guest_workload());
        let config = match case.workload.is_nano() {
            true => config.kvm().nano().arguments(NANO_PROCESSOR),
            false => config,
        };
        let (config, throttle) = match case.workload.disk_bytes_per_second() {
            Some(rate) => {
                let (config, throttle) = disk::attach_throttled(&lab, config, rate)?;
                (config, Some(throttle))
            }
            None => (config, None),
        };
        let config = match case.workload {
            Workload::Debian => disk::attach_debian(&lab, config)?,
            _ => config,
        };
        let config = match case.workload {
            Workload::Web => config.initramfs(web_initramfs()?),
            _ => config,
        };
        let line = (case.network, args.congestion.as_deref());
        let testbed = Self::start(lab, config, line, case.workload.has_network_card())?;
        if let (Some(throttle), Some(rate)) = (&throttle, case.workload.disk_bytes_per_second()) {
            // All memory that the disk is read into is used before measuring.
            throttle.set(0)?;
            wait_read(&testbed.source, 2 * DISK_ARENA_MIB * 1024)?;
            throttle.set(rate)?;
        }
        Ok(testbed)
    }

    /// Starts a guest on the source host, and its destination, over a line with this congestion
    /// control, and waits until its workload runs.
    pub(crate) fn start(
        lab: Lab,
        config: VmConfig,
        line: (NetworkKind, Option<&str>),
        network_card: bool,
    ) -> Result<Self, BenchError> {
        Self::start_each(lab, [config.clone(), config], line, network_card)
    }

    /// [Starts](Self::start) a guest whose machines on the two hosts have other disks.
    pub(crate) fn start_each(
        lab: Lab,
        configs: [VmConfig; 2],
        (line, congestion): (NetworkKind, Option<&str>),
        network_card: bool,
    ) -> Result<Self, BenchError> {
        let (guest_network, network, [here, there]) = if network_card {
            let guest_network = GuestNetwork::new()?;
            let hosts = (
                guest_network.source().clone(),
                guest_network.destination().clone(),
            );
            let network = Network::between(hosts, line, congestion)?;
            let configs = configs.map(|config| config.nic(guest_network.nic()));
            (Some(guest_network), network, configs)
        } else {
            (None, Network::new(line, congestion)?, configs)
        };
        let source = here.namespace(network.source()).start(&lab, "source")?;
        let destination = there
            .namespace(network.destination())
            .console(source.console().clone())
            .incoming()
            .start(&lab, DESTINATION)?;
        source.wait_ready()?;
        source.wait_output(LONG)?;
        Ok(Self {
            lab,
            network,
            source,
            destination,
            guest_network,
        })
    }

    /// The process ids of both QEMUs.
    pub(crate) fn pids(&self) -> [u32; 2] {
        [self.source.pid(), self.destination.pid()]
    }

    /// Waits until the guest runs at its destination; `None` when `over` returns true first.
    pub(crate) fn resumed(&self, mut over: impl FnMut() -> bool) -> Option<Event> {
        let deadline = Instant::now() + SWITCH;
        loop {
            let events = self.destination.qmp().events();
            if let Some(event) = events.into_iter().find(|event| event.name == "RESUME") {
                return Some(event);
            }
            if over() || Instant::now() > deadline {
                return None;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// The events that delimit the downtime: the destination's first `RESUME`, and the source's
    /// last `STOP` before it.
    pub(crate) fn switch(&self) -> Result<(Event, Event), BenchError> {
        let resume = self.destination.qmp().wait_event("RESUME", 0, LONG)?;
        self.source.qmp().wait_event("STOP", 0, LONG)?;
        let stop = self
            .source
            .qmp()
            .events()
            .into_iter()
            .rfind(|event| event.name == "STOP" && event.happened <= resume.happened);
        match stop {
            Some(stop) => Ok((stop, resume)),
            // A source that stops after the destination runs would mean that two guests ran at
            // once.
            None => Err(LabError::TimedOut {
                what: "the source's STOP before the destination's RESUME".to_owned(),
                after: Duration::ZERO,
                seen: format!("{:?}", self.source.qmp().events()),
            }
            .into()),
        }
    }
}

/// Waits until the guest has read this much of its disk, KiB.
fn wait_read(vm: &Vm, kib: u64) -> Result<(), BenchError> {
    let mut read = 0;
    let first = vm.console().len();
    vm.wait_report("the guest to read its disk", first, LONG, |report| {
        if let GuestReport::Disk(work) = report {
            read += work.read_kib;
        }
        (read >= kib).then_some(())
    })?;
    Ok(())
}
