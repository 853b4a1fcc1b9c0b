//! A guest on this node: what there is of it.

use std::cell::Cell;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use error_reporter::Report;
use hikkoshi_handover::{DestinationStage, SourceStage};
use hikkoshi_libvirt::{Domain, DomainError};
use hikkoshi_linux::{Process, is_served};
use hikkoshi_qemu::qmp::{Monitor, MonitorSocket};
use hikkoshi_qemu::{GuestState, QmpListener};
use hikkoshi_status::StatusFolder;

use super::cluster::{Cluster, Side};
use super::engines::exit_status;
use super::parameters::{Machine, Parameters};
use super::state::{DestinationFacts, Facts, Qemu, SourceFacts, State};
use crate::args::NamedGuest;
use crate::commands::find_journal::{may_exist, may_listen};
use crate::commands::operator_file;
use crate::commands::status::{SeenMigrations, is_meant};
use crate::journal::{self, DestinationEntry, JournalEntry, SourceEntry};
use crate::machines;
use crate::output::status::SeenMigration;

/// For how long it is not asked again whether the other node is gone.
const GONE_AGE: Duration = Duration::from_secs(2);

/// A guest, as the agent's parameters name it.
#[derive(Debug)]
pub(super) struct Guest {
    pub(super) parameters: Parameters,
    pub(super) cluster: Cluster,
    /// Whether the other node of its move is gone, as it was found last.
    gone: Cell<Option<(Instant, bool)>>,
}

/// What was found of a guest on this node.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) state: State,
    /// The journal of a move away from here.
    pub(super) source: Option<Journal>,
    /// The journal of a move to here.
    pub(super) destination: Option<Journal>,
    /// Why the state is unknown, or what QEMU has said, for people.
    pub(super) why: Option<String>,
}

/// A journal of the guest.
#[derive(Debug)]
pub(super) struct Journal {
    pub(super) path: PathBuf,
    /// An engine works with it.
    pub(super) held: bool,
    /// Its QEMU process, if that exists.
    pub(super) process: Option<Arc<Process>>,
}

impl Guest {
    pub(super) fn new(parameters: Parameters, cluster: Cluster) -> Self {
        Self {
            parameters,
            cluster,
            gone: Cell::new(None),
        }
    }

    /// The run folder.
    pub(super) fn run(&self) -> &Path {
        &self.parameters.folder
    }

    /// The QMP socket of a template's QEMU.
    pub(super) fn socket(&self) -> PathBuf {
        machines::socket(&journal::absolute(self.run()), &self.parameters.name)
    }

    /// The guest, as the command line names it.
    pub(super) fn named(&self) -> NamedGuest {
        match &self.parameters.machine {
            Machine::Template(_) => NamedGuest::Socket(self.socket()),
            Machine::Domain { uri, .. } => NamedGuest::Domain {
                name: self.parameters.name.clone(),
                uri: uri.clone(),
            },
        }
    }

    /// Its monitor, to which no connection is made yet. `None`: there is no QEMU.
    ///
    /// # Errors
    /// That is not known.
    pub(super) fn monitor(&self) -> Result<Option<Arc<dyn Monitor>>, String> {
        match &self.parameters.machine {
            Machine::Template(_) => {
                let socket = self.socket();
                match is_served(&socket) {
                    Ok(false) => Ok(None),
                    Ok(true) => Ok(Some(Arc::new(MonitorSocket::new(&socket)))),
                    Err(error) => Err(Report::new(&error).to_string()),
                }
            }
            Machine::Domain { uri, .. } => match Domain::open(uri, &self.parameters.name) {
                Ok(domain) => Ok(Some(Arc::new(domain))),
                Err(error) => match self.domain_process() {
                    Ok(None) => Ok(None),
                    _ => Err(Report::new(&error).to_string()),
                },
            },
        }
    }

    /// QEMU's process of a domain. Does not ask its daemon.
    fn domain_process(&self) -> Result<Option<Process>, String> {
        let Machine::Domain { file, uri } = &self.parameters.machine else {
            return Ok(None);
        };
        let uuid = domain_uuid(file)?;
        match Domain::known(uri, &uuid, &self.parameters.name).process() {
            Ok(process) => Ok(Some(process)),
            Err(DomainError::NoProcess { .. }) => Ok(None),
            Err(error) => Err(Report::new(&error).to_string()),
        }
    }

    /// QEMU's process.
    ///
    /// # Errors
    /// There may be one, which is not found.
    pub(super) fn process(&self) -> Result<Option<Process>, String> {
        let Machine::Template(_) = &self.parameters.machine else {
            return self.domain_process();
        };
        match machines::ListeningProcess::at(&self.socket()) {
            Ok(machines::ListeningProcess::Process(process)) => Ok(Some(process)),
            Ok(machines::ListeningProcess::None) => Ok(None),
            Ok(machines::ListeningProcess::Changed) => Err("it has just changed".to_owned()),
            Ok(machines::ListeningProcess::Unknown) => {
                Err("the process behind its QMP socket is not known".to_owned())
            }
            Err(error) => Err(Report::new(&error).to_string()),
        }
    }

    /// Looks at it.
    pub(super) fn look(&self) -> Found {
        // The mark first: it is removed after the journal is written, so one of them is seen.
        let waits = self.waits();
        let mut why = None;
        let monitor = self.monitor().unwrap_or_else(|error| {
            why = Some(error);
            None
        });
        let is_unknown = why.is_some();
        let qemu = match &monitor {
            Some(monitor) => Qemu::Process(match monitor.listener() {
                Ok(QmpListener::Process(pid)) => Some(pid),
                _ => None,
            }),
            // It is not known.
            None if is_unknown => Qemu::Process(None),
            None => Qemu::None,
        };
        let mut unreadable = None;
        let source = self.journal::<SourceEntry>(monitor.as_deref(), &mut unreadable);
        let destination = self.journal::<DestinationEntry>(monitor.as_deref(), &mut unreadable);
        let side = match source {
            Some(_) => Side::Source,
            None => Side::Destination,
        };
        let source_facts = source.as_ref().map(|(entry, journal)| SourceFacts {
            stage: entry.engine.stage,
            held: journal.held,
        });
        let destination_facts = destination.as_ref().map(|(entry, journal)| {
            let engine = &entry.engine;
            DestinationFacts {
                stage: engine.stage,
                postcopy: engine.postcopy,
                held: journal.held,
                has_qemu: journal.process.is_some(),
                reported_lost: !journal.held && self.has_reported_lost(),
            }
        });
        let depends_on_peer = match (source_facts, destination_facts) {
            (Some(source), _) => matches!(
                source.stage,
                SourceStage::Committed | SourceStage::HandedOver
            ),
            (None, Some(destination)) => matches!(
                destination.stage,
                DestinationStage::Receiving | DestinationStage::Ready | DestinationStage::Running
            ),
            (None, None) => waits,
        };
        // Before the handover a link says nothing: a destination keeps none that it needs.
        let counts_links = source_facts.is_some()
            || destination_facts.is_some_and(|facts| facts.stage == DestinationStage::Running);
        let facts = Facts {
            qemu,
            waits,
            source: source_facts,
            destination: destination_facts,
            has_unreadable: unreadable.is_some(),
            peer_is_gone: depends_on_peer && self.peer_is_gone(side, counts_links),
            daemon_is_away: is_unknown && matches!(self.domain_process(), Ok(Some(_))),
        };
        let state = facts.state().unwrap_or_else(|| {
            let answer = monitor.as_ref().map(|monitor| {
                // Another agent was killed while it started it.
                if self.is_starting() {
                    hikkoshi_qemu::qmp::wait_until_started(&self.socket());
                }
                GuestState::query(&**monitor)
            });
            match answer {
                Some(Ok(answer)) => {
                    why = Some(format!("QEMU's state is {}", answer.state));
                    facts.answered(Some(&answer))
                }
                Some(Err(error)) => {
                    why = Some(error);
                    facts.answered(None)
                }
                None => facts.answered(None),
            }
        });
        Found {
            state,
            source: source.map(|(_, journal)| journal),
            destination: destination.map(|(_, journal)| journal),
            why: unreadable.or(why),
        }
    }

    /// How far the handover of the guest to another node is, and whether an engine works on it.
    /// `None`: it has no journal.
    pub(super) fn handover(&self) -> Option<(SourceStage, bool)> {
        let monitor = self.monitor().ok().flatten();
        let (entry, journal) = self.journal::<SourceEntry>(monitor.as_deref(), &mut None)?;
        Some((entry.engine.stage, journal.held))
    }

    /// Whether a QEMU was started for the guest, which was not handed over to it.
    fn waits(&self) -> bool {
        let name = &self.parameters.name;
        match self.parameters.machine {
            Machine::Template(_) => machines::is_marked(self.run(), name),
            // The daemon's receiver waits for its source, and its domain is nobody's guest yet. Its
            // socket is there for a moment after the last page, too: the domain runs then.
            Machine::Domain { ref uri, .. } => {
                let socket = self.run().join("receivers").join(format!("{name}.sock"));
                is_served(&socket).unwrap_or(false)
                    && !Domain::running(uri).is_ok_and(|names| names.contains(name))
            }
        }
    }

    /// The guest's journal of one side. `unreadable` gets why one cannot be read.
    fn journal<E: JournalEntry>(
        &self,
        monitor: Option<&dyn Monitor>,
        unreadable: &mut Option<String>,
    ) -> Option<(E, Journal)> {
        let found = match journal::search::<E>(self.run(), Some(&self.named())) {
            Ok(found) => found,
            Err(error) => {
                *unreadable = Some(format!("looking for journals: {}", Report::new(&error)));
                return None;
            }
        };
        // One of another QEMU is not this guest's, if this guest has one.
        let own = monitor.and_then(|monitor| match monitor.listener() {
            Ok(QmpListener::Process(pid)) => Some(pid),
            _ => None,
        });
        let may_be_own = |path: &Path| {
            let owner = journal::owner::<E>(path);
            own.is_none() || owner.is_none() || owner == own
        };
        let mut others = found.others.iter();
        if let Some((path, error)) = others.find(|(path, _)| may_be_own(path)) {
            let (path, error) = (path.display(), Report::new(error));
            *unreadable = Some(format!("the journal {path} cannot be read: {error}"));
        }
        let is_over =
            |entry: &E| entry.ends_with_qemu() && !may_exist(entry.identity()).unwrap_or(true);
        let fits = |entry: &E| monitor.is_none_or(|monitor| may_listen(monitor, entry.identity()));
        // A destination's journal whose QEMU has ended says that the guest is lost.
        let counts = |entry: &E| E::SIDE != SourceEntry::SIDE || !is_over(entry);
        let (path, entry) = found
            .readable
            .into_iter()
            .find(|(_, entry)| fits(entry) && counts(entry))?;
        let held = journal::is_held(&path).unwrap_or(true);
        let process = entry.identity().process().unwrap_or_default();
        // The engine may have finished, and removed it.
        path.exists().then_some((
            entry,
            Journal {
                path,
                held,
                process,
            },
        ))
    }

    /// Whether the daemon's last receiver of the guest has ended with status 4.
    fn has_reported_lost(&self) -> bool {
        let file = format!("{}.json", self.parameters.name);
        let text = fs::read_to_string(self.run().join("receivers").join(file));
        let value = text
            .ok()
            .and_then(|text| serde_json::from_str::<serde_json::Value>(&text).ok());
        value.is_some_and(|value| exit_status(&value) == Some(4))
    }

    /// Whether the other node of the guest's move has left the cluster. If `counts_links`, it is
    /// not taken for gone as long as an engine has links to it: its fencing may not be over.
    fn peer_is_gone(&self, side: Side, counts_links: bool) -> bool {
        if let Some((at, gone)) = self.gone.get()
            && at.elapsed() < GONE_AGE
        {
            return gone;
        }
        let gone = self.cluster.peer_is_gone(&self.parameters.name, side)
            && !(counts_links && self.has_links());
        self.gone.set(Some((Instant::now(), gone)));
        gone
    }

    /// Whether an engine of the guest says that it has links.
    fn has_links(&self) -> bool {
        let connected = |seen: &SeenMigration| {
            let state = seen.state.as_ref();
            seen.answers()
                && state.is_some_and(|state| {
                    state.outages.last().is_none_or(|last| last.to_ms.is_some())
                })
        };
        self.migrations().iter().any(connected)
    }

    /// What the engines of the guest on this node say.
    pub(super) fn migrations(&self) -> Vec<SeenMigration> {
        let folder = StatusFolder::in_run_folder(self.run());
        let Ok(all) = SeenMigrations::new(folder).look(false) else {
            return Vec::new();
        };
        let meant = self.migration_name();
        all.into_iter()
            .filter(|seen| is_meant(seen, &meant))
            .collect()
    }

    /// How `hikkoshi status`, `switch` and `cancel` name the guest's migration.
    pub(super) fn migration_name(&self) -> String {
        match self.parameters.machine {
            Machine::Template(_) => self.socket().display().to_string(),
            Machine::Domain { .. } => self.parameters.name.clone(),
        }
    }
}

/// The UUID in the file of a domain, which the domain has on each node.
pub(super) fn domain_uuid(file: &Path) -> Result<String, String> {
    let about = |why: String| format!("the domain's file {}: {why}", file.display());
    let text = operator_file::read(file).map_err(about)?;
    let uuid = text
        .split_once("<uuid>")
        .and_then(|(_, rest)| rest.split_once("</uuid>"));
    match uuid {
        Some((uuid, _)) => Ok(uuid.trim().to_owned()),
        None => Err(about("it has no <uuid>".to_owned())),
    }
}
