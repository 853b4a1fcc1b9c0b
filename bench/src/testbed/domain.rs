//! The testbed of a case with libvirt: two hosts, each with a daemon, and a domain that works on
//! the source.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use hikkoshi_lab::libvirt::{Domain, DomainConfig, DomainEvents, LibvirtHost, LibvirtHosts};
use hikkoshi_lab::{Disk, DiskContent, DiskFormat, DiskImage, Lab, LabError};

use super::Network;
use crate::args::Args;
use crate::error::BenchError;
use crate::plan::{Case, NetworkKind, RAM_MIB};

/// Two hosts with libvirt.
#[derive(Debug)]
pub(crate) struct DomainHosts {
    lab: Lab,
    hosts: LibvirtHosts,
}

impl DomainHosts {
    /// Where images are made.
    pub(crate) fn lab(&self) -> &Lab {
        &self.lab
    }

    /// Starts both daemons.
    pub(crate) fn start() -> Result<Self, BenchError> {
        let lab = Lab::new()?;
        // libvirt's own post-copy needs it.
        let hosts = LibvirtHosts::start_with_userfaultfd(&lab)?;
        Ok(Self { lab, hosts })
    }
}

/// A working domain, and what its daemons report.
#[derive(Debug)]
pub(crate) struct DomainTestbed<'h> {
    /// For reports of programs.
    pub folder: PathBuf,
    pub source: &'h LibvirtHost,
    pub destination: &'h LibvirtHost,
    /// The network that the domain is moved over; its clients are on another one.
    pub network: Network,
    pub hosts: &'h LibvirtHosts,
    pub domain: Domain<'h>,
    disk: Disk,
    events: [DomainEvents<'h>; 2],
}

impl<'h> DomainTestbed<'h> {
    /// Boots the guest, and waits until its workload runs.
    pub(crate) fn boot(
        hosts: &'h DomainHosts,
        case: &Case,
        args: &Args,
    ) -> Result<Self, BenchError> {
        let content = DiskContent::FileSystem {
            mib: 24,
            blocks_mib: 4,
        };
        let disk = Disk::new(DiskImage::new(
            &hosts.lab,
            "disk",
            DiskFormat::Qcow2,
            content,
        )?);
        let config = DomainConfig::new("guest", case.guest_workload())
            .memory_mib(RAM_MIB)
            .file_system(disk.clone());
        Self::boot_domain(hosts, config, disk, case.network, args)
    }

    /// Boots another domain, whose disk is this one.
    pub(crate) fn boot_domain(
        hosts: &'h DomainHosts,
        config: DomainConfig,
        disk: Disk,
        network: NetworkKind,
        args: &Args,
    ) -> Result<Self, BenchError> {
        let DomainHosts { lab, hosts } = hosts;
        let namespaces = (
            hosts.network().source().clone(),
            hosts.network().destination().clone(),
        );
        let network = Network::between(namespaces, network, args.congestion.as_deref())?;
        let config = config.bridge(LibvirtHosts::BRIDGE);
        let (source, destination) = (&hosts.source, &hosts.destination);
        Ok(Self {
            folder: lab.folder().to_owned(),
            source,
            destination,
            network,
            hosts,
            domain: Domain::boot(hosts, config)?,
            disk,
            events: [
                DomainEvents::record(source)?,
                DomainEvents::record(destination)?,
            ],
        })
    }

    /// Ends the domain where it is now.
    pub(crate) fn destroy(&self) -> Result<(), BenchError> {
        Ok(self.domain.destroy(self.destination)?)
    }

    /// The process IDs of everything on both hosts.
    pub(crate) fn pids(&self) -> Vec<u32> {
        let mut pids = self.source.processes();
        pids.extend(self.destination.processes());
        pids
    }

    /// When the guest was paused at the source, and when it ran at the destination, by the daemons'
    /// events.
    pub(crate) fn switch(&self) -> Result<(Instant, Instant), BenchError> {
        let [left, arrived] = &self.events;
        let name = self.domain.name();
        let (left, arrived) = (left.with_times(name)?, arrived.with_times(name)?);
        let is = |kind: &str, event: &str| {
            let details = event.strip_prefix("lifecycle: ");
            details.is_some_and(|details| details.starts_with(kind))
        };
        let resumed = arrived.iter().find(|(_, event)| is("Resumed", event));
        let suspended = resumed.and_then(|(resumed, _)| {
            let mut before = left.iter().filter(|(at, _)| at <= resumed);
            before.find(|(_, event)| is("Suspended", event))
        });
        match (suspended, resumed) {
            (Some((suspended, _)), Some((resumed, _))) => Ok((*suspended, *resumed)),
            _ => Err(LabError::TimedOut {
                what: "the source's event Suspended before the destination's Resumed".to_owned(),
                after: Duration::ZERO,
                seen: format!("{left:#?} {arrived:#?}"),
            }
            .into()),
        }
    }

    /// Ends the domain where it is now, and checks its disk.
    pub(crate) fn end(self) -> Result<(), BenchError> {
        self.destroy()?;
        self.disk.image().check()?;
        Ok(())
    }
}
