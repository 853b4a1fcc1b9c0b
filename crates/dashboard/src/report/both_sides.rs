//! The recordings of one migration.

use hikkoshi_account::{
    Account, Compression, GuestAt, LatencySummary, Outage, Repeats, Side, State, SwitchoverStep,
};
use hikkoshi_status::{End, Migration, Recording, Unknown};

use super::format::duration;

/// One migration: its source, its destination, or both.
#[derive(Debug)]
pub(super) struct BothSides<'a> {
    /// The newest first: one of each side, as a rule.
    recordings: Vec<&'a Recording>,
}

/// Recordings by migration, in the order of their first recordings.
pub(super) fn group(recordings: &[Recording]) -> Vec<BothSides<'_>> {
    let mut groups: Vec<BothSides<'_>> = Vec::new();
    for recording in recordings {
        let id = &recording.migration.id;
        match groups.iter_mut().find(|group| group.id() == id) {
            Some(group) => group.recordings.push(recording),
            None => groups.push(BothSides {
                recordings: vec![recording],
            }),
        }
    }
    for group in &mut groups {
        let began = |recording: &&Recording| recording.engine_started_unix_ms();
        group
            .recordings
            .sort_by_key(|recording| std::cmp::Reverse(began(recording)));
    }
    groups
}

impl<'a> BothSides<'a> {
    /// All recordings, the newest first.
    pub(super) fn all(&self) -> &[&'a Recording] {
        &self.recordings
    }

    /// The newest recording of a side.
    pub(super) fn side(&self, side: Side) -> Option<&'a Recording> {
        let mut recordings = self.recordings.iter();
        recordings
            .find(|recording| recording.migration.side == side)
            .copied()
    }

    /// The recording that has most to say in general: the source's.
    fn main(&self) -> Option<&'a Recording> {
        self.side(Side::Source)
            .or_else(|| self.side(Side::Destination))
    }

    /// What is moved, as the source says if it is known.
    pub(super) fn migration(&self) -> Option<&'a Migration> {
        self.main().map(|recording| &recording.migration)
    }

    /// Whether that part is known of the source, or else of the destination.
    pub(super) fn knows(&self, part: Unknown) -> bool {
        self.main().is_some_and(|recording| recording.knows(part))
    }

    pub(super) fn id(&self) -> &str {
        let first = self.recordings.first();
        first.map_or("", |recording| recording.migration.id.as_str())
    }

    /// The last state of a side, or of the other one if that side is not known.
    pub(super) fn state(&self, side: Side) -> Option<&'a State> {
        let recording = self.side(side).or_else(|| self.main());
        recording.and_then(|recording| recording.state.as_ref())
    }

    /// How long the guest was paused: what the source says, or else the destination.
    pub(super) fn downtime(&self) -> Option<Downtime> {
        let sides = [Side::Source, Side::Destination];
        sides
            .into_iter()
            .find_map(|side| Downtime::of_recording(self.side(side)?))
    }

    /// The latency of page requests, if there were any.
    pub(super) fn requests(&self) -> Option<&'a LatencySummary> {
        let requests = &self.state(Side::Destination)?.requests;
        (requests.count > 0).then_some(requests)
    }

    /// Times without links; `None`: not known.
    pub(super) fn outages(&self) -> Option<&'a [Outage]> {
        let recording = self.side(Side::Destination).or_else(|| self.main())?;
        let known = recording
            .state
            .as_ref()
            .map_or(&[][..], |state| &state.outages);
        recording.knows(Unknown::Outages).then_some(known)
    }

    /// Pages that were sent more than once; `None`: not known.
    pub(super) fn repeats(&self) -> Option<&'a Repeats> {
        self.state(Side::Source)?.repeats.as_ref()
    }

    /// What was compressed: by the source; without it, what has arrived so. `None`: nothing.
    pub(super) fn compression(&self) -> Option<Compression> {
        self.state(Side::Source)?.compression
    }

    /// The number of rounds of pre-copy, with the last one in which the guest was paused.
    pub(super) fn rounds(&self) -> Option<u64> {
        let source = self.side(Side::Source)?;
        let counted = account(source).map(|account| u64::from(account.rounds));
        let recorded = || {
            let state = source.state.as_ref()?;
            Some(u64::from(state.rounds.last()?.round))
        };
        counted.or_else(recorded).filter(|rounds| *rounds > 0)
    }

    /// The steps of the switchover at a side.
    pub(super) fn switchover(&self, side: Side) -> &'a [SwitchoverStep] {
        let state = self
            .side(side)
            .and_then(|recording| recording.state.as_ref());
        state.map_or(&[], |state| &state.switchover)
    }

    /// How it ended: the side that is worse off.
    pub(super) fn end(&self) -> Option<&'a End> {
        let sides = [Side::Source, Side::Destination];
        let ends = sides
            .into_iter()
            .filter_map(|side| self.side(side)?.end.as_ref());
        // Of equal ones the source's.
        ends.rev().max_by_key(|end| end.exit_status)
    }

    /// When the last thing happened, in the times of the recording; `None`: not known.
    pub(super) fn last_ms(&self) -> Option<u64> {
        let main = self.main()?;
        main.knows(Unknown::Duration).then(|| main.last_ms())
    }

    /// How long the migration took, in ms; `None`: not known. The times of a result are those of
    /// its engine, and its total is that of the migration.
    pub(super) fn total_ms(&self) -> Option<u64> {
        let main = self.main()?;
        if let Some(account) = account(main).filter(|account| account.is_resumed()) {
            #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // `as` saturates.
            return Some(account.total_ms as u64);
        }
        self.last_ms()
    }
}

/// The account of a migration that has succeeded.
fn account(recording: &Recording) -> Option<&Account> {
    let end = recording.end.as_ref()?;
    Some(&end.account.as_ref()?.account)
}

/// How long the guest was paused, as one side has measured it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Downtime {
    /// What this side has measured, in ms.
    pub(super) ms: f64,
    /// What that is of the downtime.
    pub(super) bound: DowntimeBound,
    /// How long the guest likely was paused, in ms, if that is known.
    pub(super) likely_ms: Option<f64>,
}

/// What a measured time is of the downtime.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DowntimeBound {
    /// The source's ends when it has received the message that the guest runs.
    AtMost,
    /// The destination's begins with a message that the source sends after the pause.
    AtLeast,
    /// Not known: which side it was, or the guest has been paused until now.
    None,
}

impl Downtime {
    fn of_recording(recording: &Recording) -> Option<Self> {
        let account = account(recording);
        let state = recording.state.as_ref();
        let ms = account
            .and_then(|it| it.downtime_ms)
            .or_else(|| state?.downtime_ms)?;
        let likely_ms = account.and_then(|it| it.likely_downtime_ms);
        let likely_ms = likely_ms.or_else(|| state?.likely_downtime_ms);
        let is_paused = state.is_some_and(|state| state.guest_at == GuestAt::Paused);
        let bound = match recording.migration.side {
            _ if is_paused || !recording.knows(Unknown::Side) => DowntimeBound::None,
            Side::Source => DowntimeBound::AtMost,
            Side::Destination => DowntimeBound::AtLeast,
        };
        Some(Self {
            ms,
            bound,
            likely_ms,
        })
    }

    /// For people, as `web/js/format.js` writes it.
    pub(super) fn text(&self) -> String {
        let measured = duration(self.ms);
        let measured = match self.bound {
            DowntimeBound::AtMost => format!("at most {measured}"),
            DowntimeBound::AtLeast => format!("at least {measured}"),
            DowntimeBound::None => measured,
        };
        match self.likely_ms {
            Some(likely) => format!("about {}, {measured}", duration(likely)),
            None => measured,
        }
    }
}

/// What an exit status means (`docs/json.md`).
pub(super) fn outcome(end: Option<&End>) -> &'static str {
    match end.map(|end| end.exit_status) {
        None => "in progress, or its engine was killed",
        Some(0) => "moved",
        Some(1) => "stays at the source",
        Some(2) => "not begun",
        Some(3) => "handed over, not complete",
        Some(4) => "guest lost",
        Some(_) => "ended",
    }
}
