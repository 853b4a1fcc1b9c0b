//! What an observer can read of a migration while it runs.
//!
//! The threads of a migration count what they do in atomics ([`Counters`], [`MemoryMap`],
//! [`RequestLatencies`]); the few that change a phase or a stage take a lock for a moment. An
//! observer takes a [`Snapshot`] as often as it likes. That delays no page.

#[cfg(test)]
#[cfg(not(loom))]
mod cost_tests;
mod memory_map;
mod missing;
mod outages;
mod rounds;
mod stage;

use std::fmt::{self, Debug};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant, SystemTime};

use hikkoshi_account::{
    Account, Bytes, DiskCopy, GuestAt, GuestState, Phase, Repeats, Stage, State,
};
use hikkoshi_handover::{DestinationStage, SourceStage};
use hikkoshi_memory::ContentMap;
use hikkoshi_pages::{Page, RamLayout};
use hikkoshi_wire::{MigrationId, Mode};
use ring::digest::{SHA256, digest};

use crate::report::{Counters, RequestLatencies, SwitchoverSteps, Tracker, millis, whole_millis};

pub use memory_map::{Cell, CellCounts, MAX_CELLS, MemoryMap};
pub(crate) use missing::{MissingAndRequested, MissingRanges};
pub(crate) use outages::Outages;
pub(crate) use rounds::Rounds;
pub(crate) use stage::HasStage;
use stage::{StageJournal, of_peer};

/// A migration that runs, on one side.
pub struct Live {
    id: MigrationId,
    /// `migrate` or `receive` resumed it.
    resumed: bool,
    mode: Mode,
    peer: String,
    begun: Instant,
    started: SystemTime,
    layout: RamLayout,
    pub(crate) counters: Arc<Counters>,
    pub(crate) tracker: Arc<Tracker>,
    pub(crate) map: Arc<MemoryMap>,
    pub(crate) steps: Arc<SwitchoverSteps>,
    pub(crate) latencies: Arc<RequestLatencies>,
    pub(crate) rounds: Rounds,
    pub(crate) outages: Outages,
    stage: Arc<stage::Present>,
    /// At the source: where the guest's memory had content when the migration began.
    content: OnceLock<Arc<ContentMap>>,
    /// At the source: about how many bytes the copies of the disks send.
    disk_content: OnceLock<u64>,
    /// At the source.
    disks: Mutex<Vec<DiskCopy>>,
    /// Weak, because it holds the userfaultfd, and an observer may keep this for long.
    missing: OnceLock<Weak<dyn MissingAndRequested>>,
    /// The number of missing pages when it was last read.
    last_missing: AtomicU64,
    /// Missing pages that the map does not have yet.
    new_missing: Mutex<Option<Weak<dyn MissingRanges>>>,
}

impl Debug for Live {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Without the number, which is a secret.
        f.debug_struct("Live")
            .field("mode", &self.mode)
            .field("peer", &self.peer)
            .finish_non_exhaustive()
    }
}

/// What is known when a migration begins.
pub(crate) struct LiveStart<'a> {
    pub(crate) id: MigrationId,
    pub(crate) stage: Stage,
    pub(crate) resumed: bool,
    pub(crate) mode: Mode,
    pub(crate) peer: String,
    pub(crate) layout: &'a RamLayout,
}

/// The state of a migration at one time, and what else is known then.
#[derive(Debug, Clone)]
pub struct Snapshot {
    /// When: the time since the migration began on this side.
    pub at: Duration,
    /// The state. Without what an observer calculates from several states: rates, limits, the time
    /// that is left, whether pre-copy converges, and the map.
    pub state: State,
    /// Where the guest's memory had content when the migration began (source). `None`: not known.
    pub content: Option<Arc<ContentMap>>,
    /// About how many bytes the copies of the disks send (source). `None`: not known.
    pub disk_content: Option<u64>,
    /// First pages of the host pages that are requested and have not arrived (destination).
    pub waiting: Vec<Page>,
}

impl Live {
    pub(crate) fn new(start: LiveStart<'_>) -> Self {
        Self {
            id: start.id,
            resumed: start.resumed,
            mode: start.mode,
            peer: start.peer,
            begun: Instant::now(),
            started: SystemTime::now(),
            layout: start.layout.clone(),
            counters: Arc::default(),
            tracker: Arc::default(),
            map: Arc::new(MemoryMap::new(start.layout.pages())),
            steps: Arc::default(),
            latencies: Arc::default(),
            rounds: Rounds::default(),
            outages: Outages::default(),
            stage: Arc::new(stage::Present::new(start.stage)),
            content: OnceLock::new(),
            disk_content: OnceLock::new(),
            disks: Mutex::default(),
            missing: OnceLock::new(),
            last_missing: AtomicU64::new(0),
            new_missing: Mutex::default(),
        }
    }

    /// A name of the migration, the same on both sides: the beginning of a hash, in hexadecimal.
    /// The number itself is a secret, with which a source may reconnect.
    pub fn name(&self) -> String {
        Self::name_of(&self.id)
    }

    /// The name of the migration with this number.
    pub fn name_of(id: &MigrationId) -> String {
        let hash = digest(&SHA256, &id.to_bytes());
        let name = hash.as_ref().iter().take(8);
        name.map(|byte| format!("{byte:02x}")).collect()
    }

    /// Whether another engine had begun it.
    pub fn is_resumed(&self) -> bool {
        self.resumed
    }

    /// The mode that was requested.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// The other side's address; empty if it has not connected yet.
    pub fn peer(&self) -> &str {
        &self.peer
    }

    /// When the migration began on this side.
    pub fn started(&self) -> SystemTime {
        self.started
    }

    /// When the migration began on this side, by the clock of [`Snapshot::at`].
    pub fn begun(&self) -> Instant {
        self.begun
    }

    /// The guest's RAM.
    pub fn layout(&self) -> &RamLayout {
        &self.layout
    }

    /// Where the guest's memory has content.
    pub(crate) fn set_content(&self, content: ContentMap) {
        let _ = self.content.set(Arc::new(content));
    }

    /// The copies of the disks send about so many bytes.
    pub(crate) fn set_disk_content(&self, bytes: u64) {
        let _ = self.disk_content.set(bytes);
    }

    /// How far the disks are copied now.
    pub(crate) fn set_disks(&self, disks: Vec<DiskCopy>) {
        *self.lock_disks() = disks;
    }

    /// How far the disks are copied.
    pub(crate) fn disks(&self) -> Vec<DiskCopy> {
        self.lock_disks().clone()
    }

    fn lock_disks(&self) -> MutexGuard<'_, Vec<DiskCopy>> {
        self.disks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What has happened to the guest's memory.
    pub fn map(&self) -> &MemoryMap {
        &self.map
    }

    /// These pages are missing now. Only notes that: to find them takes a pass over all memory, and
    /// the guest may be paused. The next [`snapshot`](Self::snapshot) does it.
    pub(crate) fn note_missing(&self, missing: Weak<dyn MissingRanges>) {
        *self.lock_new_missing() = Some(missing);
    }

    /// From now on the missing pages are known (destination).
    pub(crate) fn set_missing(&self, missing: Weak<dyn MissingAndRequested>) {
        let _ = self.missing.set(missing);
    }

    /// A journal that also notes the stage here.
    pub(crate) fn stages_from<R>(
        &self,
        journal: &Arc<dyn hikkoshi_handover::Journal<R>>,
    ) -> Arc<dyn hikkoshi_handover::Journal<R>>
    where
        R: Debug + HasStage + 'static,
    {
        Arc::new(StageJournal::new(journal, &self.stage))
    }

    fn lock_new_missing(&self) -> MutexGuard<'_, Option<Weak<dyn MissingRanges>>> {
        let locked = self.new_missing.lock();
        locked.unwrap_or_else(PoisonError::into_inner)
    }

    /// Pages that were sent more than once.
    fn repeats(&self, stage: Stage) -> Option<Repeats> {
        let is_known = matches!(stage, Stage::Source(_)) && !self.resumed;
        is_known.then(|| self.counters.repeats.all())
    }

    /// The account of this side, as far as both sides know it. `postcopy`: pages were missing when
    /// the guest was resumed.
    pub(crate) fn account(&self, guest_state: GuestState, postcopy: bool) -> Account {
        let since_resumed = self.steps.since_resumed(Instant::now());
        Account {
            postcopy_ms: since_resumed.filter(|_| postcopy).map(millis),
            switchover: self.steps.all(),
            postcopy,
            pages: self.counters.pages(self.layout.pages()),
            bytes: self.counters.bytes(),
            compression: self.counters.compression(),
            repeats: self.repeats(self.stage.get()),
            rounds_detail: self.rounds.newest(self.begun, &self.counters),
            outages: self.outages.newest(self.begun),
            disk_bytes: self.counters.disk_bytes(),
            ..Account::new(self.mode, guest_state)
        }
    }

    /// The time of a moment, as [`Snapshot::at`] counts it.
    fn since(&self, at: Instant) -> Duration {
        at.saturating_duration_since(self.begun)
    }

    /// The present state.
    pub fn snapshot(&self) -> Snapshot {
        let new_missing = self.lock_new_missing().take();
        if let Some(missing) = new_missing.and_then(|missing| missing.upgrade()) {
            self.map.set_missing(&*missing);
        }
        let (phase, round, done_pages, total_pages) = self.tracker.present();
        let stage = self.stage.get();
        let downtime = self.steps.downtime(Instant::now());
        let post_copy = self.missing.get().map(Weak::upgrade);
        let missing = match (&post_copy, stage) {
            (Some(Some(present)), _) => {
                let missing = present.missing_pages();
                self.last_missing.store(missing, Relaxed);
                // A page is counted before it leaves the set. So with the right numbers the map
                // has never more; it has if a page was in between when they were taken.
                if self.map.missing() > missing {
                    self.map.set_missing(&**present);
                }
                Some(missing)
            }
            // It has ended.
            (Some(None), Stage::Destination(DestinationStage::Complete)) => Some(0),
            (Some(None), _) => Some(self.last_missing.load(Relaxed)),
            (None, Stage::Source(_)) if phase == Phase::Postcopy => Some(self.tracker.missing()),
            _ => None,
        };
        let mut waiting = Vec::new();
        if let Some(Some(present)) = &post_copy {
            present.each_waiting(&mut |page| waiting.push(page));
        }
        let (at, switchover) = (self.since(Instant::now()), self.steps.all());
        let mut state = State {
            at_ms: whole_millis(at),
            phase,
            round,
            done_pages,
            total_pages,
            stage,
            peer_stage: of_peer(stage, &switchover),
            guest_at: guest_at(stage, downtime.is_some(), self.steps.is_paused()),
            pages: self.counters.pages(self.layout.pages()),
            bytes: Bytes {
                disks: Some(self.counters.disk_bytes.load(Relaxed)),
                ..self.counters.bytes()
            },
            compression: self.counters.compression(),
            repeats: self.repeats(stage),
            disks: self.disks(),
            missing_pages: missing,
            waiting_pages: waiting.len() as u64,
            requests: self.latencies.total(),
            downtime_ms: downtime.map(millis),
            likely_downtime_ms: self.steps.likely_downtime().map(millis),
            switchover,
            rounds: self.rounds.newest(self.begun, &self.counters),
            outages: self.outages.newest(self.begun),
            ..State::new(stage.side())
        };
        if copies_disks(&state) {
            state.phase = Phase::Disks;
        }
        Snapshot {
            at,
            state,
            content: self.content.get().cloned(),
            disk_content: self.disk_content.get().copied(),
            waiting,
        }
    }
}

/// Whether disks are copied. The source connects again after an outage, when disks were copied long
/// ago. A destination does not know when they are complete, but the first page follows them.
fn copies_disks(now: &State) -> bool {
    now.guest_at == GuestAt::Source
        && match (now.stage, now.phase) {
            (Stage::Source(_), Phase::Connecting) => !now.disks.is_empty(),
            (Stage::Destination(_), Phase::Connecting | Phase::Precopy) => {
                now.bytes.disks > Some(0) && now.pages.precopy + now.pages.zero == 0
            }
            _ => false,
        }
}

/// Where the guest is.
fn guest_at(stage: Stage, was_paused: bool, is_paused: bool) -> GuestAt {
    match stage {
        Stage::Source(SourceStage::HandedOver | SourceStage::Done)
        | Stage::Destination(DestinationStage::Complete) => GuestAt::Destination,
        _ if is_paused => GuestAt::Paused,
        Stage::Destination(DestinationStage::Running) => GuestAt::Destination,
        Stage::Source(SourceStage::Committed) | Stage::Destination(DestinationStage::Ready)
            if !was_paused =>
        {
            GuestAt::Paused
        }
        _ => GuestAt::Source,
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use hikkoshi_handover::{History, Journal, SourceRecord, Unrecorded};
    use hikkoshi_pages::{PAGE_BYTES, PageBitmap, PageRange, RamBlock};
    use std::thread;

    fn live() -> Live {
        let block = RamBlock::new("ram", 4096 * PAGE_BYTES, PAGE_BYTES);
        Live::new(LiveStart {
            id: MigrationId::from_bytes([7; 16]),
            stage: Stage::Source(SourceStage::Owned),
            resumed: false,
            mode: Mode::Hybrid,
            peer: "there".into(),
            layout: &RamLayout::new(vec![block]).unwrap(),
        })
    }

    #[test]
    fn the_secret_number_is_not_shown() {
        let live = live();
        let name = live.name();
        assert_eq!(name.len(), 16);
        assert!(!name.contains("0707") && !format!("{live:?}").contains('7'));
    }

    #[test]
    fn a_snapshot_follows_the_stages_and_the_pause() {
        let live = live();
        let inner: Arc<dyn Journal<SourceRecord>> = Arc::new(Unrecorded);
        let journal = live.stages_from(&inner);
        let record = |stage| {
            let record = SourceRecord {
                id: MigrationId::from_bytes([7; 16]),
                stage,
                mode: Mode::Hybrid,
                history: History::begin(),
            };
            journal.record(&record).unwrap();
        };
        let state = || {
            let now = live.snapshot().state;
            (
                now.guest_at,
                now.stage,
                now.peer_stage,
                now.downtime_ms.is_some(),
            )
        };
        let (source, there) = (Stage::Source, Stage::Destination);
        let (owned, receiving) = (
            source(SourceStage::Owned),
            there(DestinationStage::Receiving),
        );
        assert_eq!(state(), (GuestAt::Source, owned, receiving, false));
        live.steps.begin(Instant::now());
        assert_eq!(state(), (GuestAt::Paused, owned, receiving, true));
        live.steps.done("destination ready");
        record(SourceStage::Committed);
        let ready = there(DestinationStage::Ready);
        assert_eq!(
            state(),
            (GuestAt::Paused, source(SourceStage::Committed), ready, true)
        );
        record(SourceStage::HandedOver);
        live.steps.end(Instant::now());
        let running = there(DestinationStage::Running);
        assert_eq!(
            state(),
            (
                GuestAt::Destination,
                source(SourceStage::HandedOver),
                running,
                true
            )
        );
        // The downtime does not grow any more.
        let downtime = live.snapshot().state.downtime_ms;
        thread::sleep(Duration::from_millis(2));
        assert_eq!(live.snapshot().state.downtime_ms, downtime);
    }

    #[test]
    fn a_guest_that_stays_is_at_the_source_again() {
        let live = live();
        live.steps.begin(Instant::now());
        live.steps.end(Instant::now());
        let now = live.snapshot().state;
        assert_eq!(now.guest_at, GuestAt::Source);
        assert!(now.downtime_ms.is_some(), "it was paused");
    }

    #[test]
    fn missing_pages_are_those_of_the_phase_at_the_source() {
        let live = live();
        assert_eq!(live.snapshot().state.missing_pages, None);
        live.tracker.begin(Phase::Postcopy, 0, 100);
        live.tracker.done(30);
        assert_eq!(live.snapshot().state.missing_pages, Some(70));
        live.map
            .add(Cell::Urgent, PageRange::from_len(Page::new(0), 3));
        assert_eq!(live.map().cell(0).urgent, 3);
    }

    #[derive(Debug)]
    struct Missing(PageBitmap);

    impl MissingRanges for Missing {
        fn each_missing(&self, each: &mut dyn FnMut(PageRange)) {
            self.0.runs(self.0.all()).for_each(each);
        }
    }

    impl MissingAndRequested for Missing {
        fn missing_pages(&self) -> u64 {
            self.0.count()
        }

        fn each_waiting(&self, _: &mut dyn FnMut(Page)) {}
    }

    #[test]
    fn the_map_recovers_from_pages_that_arrive_while_it_is_made() {
        let live = live();
        let range = |from, pages| PageRange::from_len(Page::new(from), pages);
        let missing = Arc::new(Missing(PageBitmap::empty(4096)));
        missing.0.set_range(range(500, 100));
        live.set_missing(Arc::<Missing>::downgrade(&missing));
        live.note_missing(Arc::<Missing>::downgrade(&missing));
        let snapshot = |expected| {
            assert_eq!(live.snapshot().state.missing_pages, Some(expected));
            live.map().missing()
        };
        // These are counted, and not installed yet.
        live.map.add(Cell::Background, range(500, 64));
        assert_eq!(snapshot(100), 100);
        missing.0.clear_range(range(500, 64));
        assert_eq!(snapshot(36), 36);
        assert_eq!([0, 1].map(|cell| live.map().cell(cell).missing), [0, 36]);
        // With the right numbers the map is ahead of the set.
        live.map.add(Cell::Urgent, range(564, 1));
        assert_eq!(snapshot(36), 35);
        missing.0.clear_range(range(564, 1));
        assert_eq!(snapshot(35), 35);
    }

    #[test]
    fn disks_are_copied_before_the_guest_has_moved() {
        let mut now = live().snapshot().state;
        assert_eq!(now.phase, Phase::Connecting);
        assert!(!copies_disks(&now));
        now.disks = vec![DiskCopy {
            name: "vda".into(),
            copied_bytes: 5,
            total_bytes: 9,
            in_sync: false,
        }];
        assert!(copies_disks(&now));
        // The links were lost in post-copy, and are opened again.
        now.guest_at = GuestAt::Destination;
        assert!(!copies_disks(&now));
        let mut there = live().snapshot().state;
        there.stage = Stage::Destination(DestinationStage::Receiving);
        assert!(!copies_disks(&there));
        there.bytes.disks = Some(7);
        assert!(copies_disks(&there));
        there.phase = Phase::Precopy;
        assert!(copies_disks(&there));
        there.pages.zero = 1;
        assert!(!copies_disks(&there));
    }
}
