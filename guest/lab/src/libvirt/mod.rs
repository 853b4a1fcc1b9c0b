//! Hosts with libvirt daemons of their own, and domains that move between them.
//!
//! A [`LibvirtHosts`] is a [`GuestNetwork`](crate::GuestNetwork) with a daemon on each host.
//! A [`DomainConfig`] describes a domain with the test guest. A [`Domain`] is that guest, on
//! whichever host it runs: its output arrives at one [`Console`](crate::Console), as that of a
//! [`Vm`](crate::Vm). [`DomainEvents`] records what a daemon reports.

mod config;
mod domain;
mod events;
mod host;
mod version;

pub use config::{DomainConfig, DomainConsole};
pub use domain::Domain;
pub use events::DomainEvents;
pub use host::{LibvirtHost, LibvirtHosts};
pub use version::LibvirtVersion;
