//! The destinations: what each has, the line to it, and whether it would take a guest.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::{Duration, Instant};

use error_reporter::Report;
use hikkoshi_engine::{CancelFlag, Mode, Priority, ProbeOptions, probe};
use hikkoshi_estimate::Line;
use hikkoshi_link::tls::TlsClient;
use hikkoshi_link::{Address, InquiryError};
use serde::Deserialize;

use super::inspect::Inspected;
use crate::args::HostQuestion;
use crate::commands::check;
use crate::commands::host_status::by_certificate;
use crate::output::exit::Exit;
use crate::output::reason::Reason;
use crate::security;

/// How long a line is measured.
const PROBE_TIME: Duration = Duration::from_secs(1);

/// The most bytes of that.
const PROBE_BYTES: u64 = 512 << 20;

/// What a destination has.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(super) struct HostRoom {
    /// The memory that guests may take, in bytes.
    pub(super) free_memory: u64,
    /// Its processors.
    pub(super) processors: u32,
    /// Their features; `None`: not known.
    #[serde(default)]
    pub(super) features: Option<BTreeSet<String>>,
}

/// Asks destinations what they have.
pub(super) trait AskHost {
    /// What the host at this address has; `None`: it cannot say, and refuses a guest that it cannot
    /// have when that comes.
    ///
    /// # Errors
    /// It cannot be reached, or refuses to answer: for people.
    fn ask(
        &self,
        address: &Address,
        client: &TlsClient,
        cancel: &CancelFlag,
    ) -> Result<Option<HostRoom>, String>;
}

/// Reads the answers from a file, for tests: an object with the facts of each address.
#[derive(Debug)]
pub(super) struct RoomsFile(BTreeMap<String, HostRoom>);

impl RoomsFile {
    pub(super) fn read(path: &Path) -> Result<Self, String> {
        let text = std::fs::read_to_string(path).map_err(|error| error.to_string())?;
        serde_json::from_str(&text)
            .map(Self)
            .map_err(|error| error.to_string())
    }
}

impl AskHost for RoomsFile {
    fn ask(
        &self,
        address: &Address,
        _client: &TlsClient,
        _cancel: &CancelFlag,
    ) -> Result<Option<HostRoom>, String> {
        Ok(self.0.get(&address.to_string()).cloned())
    }
}

/// Asks the `hikkoshi daemon` of each host, with this host's certificate.
#[derive(Debug)]
pub(super) struct ByCertificate;

impl AskHost for ByCertificate {
    fn ask(
        &self,
        address: &Address,
        client: &TlsClient,
        cancel: &CancelFlag,
    ) -> Result<Option<HostRoom>, String> {
        match by_certificate(address, client, HostQuestion::Host, cancel) {
            Ok(status) => Ok(Some(HostRoom {
                free_memory: status.host.memory.free_bytes(),
                processors: status.host.processors.online,
                features: Some(status.host.processors.flags.into_iter().collect()),
            })),
            // One of an earlier version, which may receive guests all the same.
            Err(InquiryError::NotAnswered) => Ok(None),
            Err(error) => Err(Report::new(&error).to_string()),
        }
    }
}

/// A destination.
#[derive(Debug)]
pub(super) struct Host {
    pub(super) address: Address,
    pub(super) client: TlsClient,
    /// `None`: not known.
    pub(super) room: Option<HostRoom>,
    /// `None`: not measured yet.
    pub(super) line: Option<Line>,
    /// Why it gets no guests any more.
    pub(super) failed: Option<String>,
    /// The guests that it does not take, by name, and why.
    pub(super) refuses: BTreeMap<String, String>,
    /// The guests that it would take.
    pub(super) takes: BTreeSet<String>,
}

impl Host {
    pub(super) fn name(&self) -> String {
        self.address.to_string()
    }

    /// Why it does not take this guest, if so.
    pub(super) fn refusal(&self, guest: &str) -> Option<String> {
        self.failed
            .clone()
            .or_else(|| self.refuses.get(guest).cloned())
    }

    /// Whether it is not known whether it takes this guest.
    pub(super) fn is_open(&self, guest: &str) -> bool {
        self.refusal(guest).is_none() && !self.takes.contains(guest)
    }
}

/// Asks the destination for an invitation for the guest, lets it compare the guest with what it has
/// started for it, and measures the line if that is wanted and not known. Nothing moves. `host` has
/// the result.
pub(super) fn try_out(
    host: &mut Host,
    inspected: &Inspected,
    mode: Mode,
    allow_cpu_mismatch: bool,
    links: u16,
    measures: bool,
    cancel: &CancelFlag,
) -> Option<Duration> {
    let name = &inspected.guest.name;
    let begun = Instant::now();
    let invited = security::invited_by_certificate(name, &host.address, &host.client, cancel);
    let (remote, request) = match invited {
        Ok(invited) => invited,
        Err(exit) => {
            not_invited(host, name, &exit);
            return None;
        }
    };
    if let Some(offer) = &inspected.offer {
        match check::ask(&remote, offer, allow_cpu_mismatch, cancel) {
            Ok(compared) => {
                let obstacles = compared.obstacles.iter().filter(|it| it.excludes(mode));
                let obstacles: Vec<_> = obstacles.map(|it| it.reason.clone()).collect();
                if !obstacles.is_empty() {
                    host.refuses.insert(name.clone(), obstacles.join("; "));
                    return None;
                }
            }
            Err(why) => {
                host.refuses.insert(name.clone(), why);
                return None;
            }
        }
    }
    let prepared = inspected.offer.as_ref().map(|_| begun.elapsed());
    if measures && host.line.is_none() {
        let options = ProbeOptions {
            links,
            time: PROBE_TIME,
            bytes: PROBE_BYTES,
            priority: Priority::ON,
        };
        let probed = probe(&remote, &options, None, cancel);
        let line = probed.map_err(|error| Report::new(&error).to_string());
        let line = line.and_then(|it| {
            let line = Line::measured(
                &it.arrived,
                it.sent_for,
                it.round_trip,
                it.median_round_trip,
                it.open_link,
            );
            line.ok_or_else(|| "nothing has arrived there in time".to_owned())
        });
        match line {
            Ok(line) => host.line = Some(line),
            Err(why) => {
                host.failed = Some(format!("measuring the line to it: {why}"));
                return None;
            }
        }
    }
    host.takes.insert(name.clone());
    drop(request);
    prepared
}

fn not_invited(host: &mut Host, name: &str, exit: &Exit) {
    match exit.reason() {
        Reason::Remote => {
            host.refuses.insert(name.to_owned(), exit.text());
        }
        _ => host.failed = Some(exit.text()),
    }
}
