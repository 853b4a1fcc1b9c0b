//! The options that a resumption needs, resolved: each is the one that was given, or else the
//! default. The journal stores them as they are here, and `--resume` takes them from there where
//! the command line does not give others.
//!
//! What is over when a migration can be resumed is not among them: options of pre-copy and of the
//! switchover, and checks of the guest. Nor are options that only measurements need.

use std::num::{NonZeroU16, NonZeroU64};

use hikkoshi_engine::destination::MAX_FAULT_THREADS;
use hikkoshi_engine::{Compression, DestinationOptions, MAX_LINKS, ReadAhead, SourceOptions};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::compress;
use super::convergence::WhenStalled;
use super::domain::DomainOptions;
use super::links::LinkOptions;
use super::read_ahead;
use super::stored_value::within;

/// Options of `migrate`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct MigrateOptions {
    /// What both sides have.
    pub link: LinkOptions,
    /// Background connections.
    #[serde(deserialize_with = "links")]
    pub links: u16,
    /// The limit of background traffic; `None`: there is none.
    pub bandwidth_bytes_per_s: Option<NonZeroU64>,
    /// Whether background pages are compressed.
    #[serde(
        serialize_with = "write_compression",
        deserialize_with = "read_compression"
    )]
    pub compression: Compression,
    /// Whether a pre-copy may have ended in post-copy.
    pub when_stalled: WhenStalled,
    /// Which pages are sent around a requested one.
    #[serde(
        serialize_with = "write_read_ahead",
        deserialize_with = "read_read_ahead"
    )]
    pub read_ahead: ReadAhead,
    /// Whether the source's QEMU is ended.
    pub quit_source: bool,
    /// What becomes of a domain.
    pub domain: DomainOptions,
}

impl Default for MigrateOptions {
    fn default() -> Self {
        let engine = SourceOptions::default();
        Self {
            link: LinkOptions::default(),
            links: engine.links,
            bandwidth_bytes_per_s: None,
            compression: engine.compression,
            when_stalled: WhenStalled::Continue,
            read_ahead: engine.read_ahead,
            quit_source: false,
            domain: DomainOptions::default(),
        }
    }
}

impl MigrateOptions {
    /// The engine's options with these.
    pub(crate) fn engine_options(&self) -> SourceOptions {
        SourceOptions {
            links: self.links,
            bandwidth: self.bandwidth_bytes_per_s.map(NonZeroU64::get),
            compression: self.compression,
            when_stalled: self.when_stalled.into(),
            read_ahead: self.read_ahead,
            retry_for: self.link.retry_for(),
            stall_timeout: self.link.stall_timeout(),
            ..SourceOptions::default()
        }
    }
}

/// Options of `receive`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ReceiveOptions {
    /// What both sides have.
    pub link: LinkOptions,
    /// Threads that handle page faults; `None`: by the numbers of processors.
    #[serde(deserialize_with = "fault_threads")]
    pub fault_threads: Option<NonZeroU16>,
    /// How fast transparent huge pages are rebuilt; `None`: they are not.
    pub collapse_bytes_per_s: Option<NonZeroU64>,
}

impl ReceiveOptions {
    /// The engine's options with these.
    pub(crate) fn engine_options(&self) -> DestinationOptions {
        DestinationOptions {
            fault_threads: self.fault_threads,
            collapse: self.collapse_bytes_per_s,
            retry_for: self.link.retry_for(),
            stall_timeout: self.link.stall_timeout(),
            ..DestinationOptions::default()
        }
    }
}

fn links<'de, D: Deserializer<'de>>(file: D) -> Result<u16, D::Error> {
    within("links", u16::deserialize(file)?, &(1..=MAX_LINKS))
}

fn fault_threads<'de, D: Deserializer<'de>>(file: D) -> Result<Option<NonZeroU16>, D::Error> {
    let all = NonZeroU16::MIN..=NonZeroU16::new(MAX_FAULT_THREADS).unwrap_or(NonZeroU16::MIN);
    let threads = Option::<NonZeroU16>::deserialize(file)?;
    threads
        .map(|threads| within("fault-threads", threads, &all))
        .transpose()
}

/// As on the command line.
fn write_read_ahead<S: Serializer>(read_ahead: &ReadAhead, file: S) -> Result<S::Ok, S::Error> {
    file.serialize_str(&read_ahead::text(*read_ahead))
}

fn read_read_ahead<'de, D: Deserializer<'de>>(file: D) -> Result<ReadAhead, D::Error> {
    let text = String::deserialize(file)?;
    read_ahead::parse(&text).map_err(|why| D::Error::custom(format!("--read-ahead: {why}")))
}

/// As on the command line.
fn write_compression<S: Serializer>(compression: &Compression, file: S) -> Result<S::Ok, S::Error> {
    file.serialize_str(compress::text(*compression))
}

fn read_compression<'de, D: Deserializer<'de>>(file: D) -> Result<Compression, D::Error> {
    let text = String::deserialize(file)?;
    compress::parse(&text).map_err(|why| D::Error::custom(format!("--compress: {why}")))
}
