//! Adds to a recording, and keeps it bounded.

use crate::rates_by_cell::RatesByCell;
use crate::{
    DirtyRates, End, Frame, MAX_CELLS, Migration, Notice, Recording, Sample, StatusRecord,
};
use hikkoshi_account::{Map, State};

/// The most samples. When there are more, every second one is dropped, and from then on half as
/// many are taken.
const SAMPLES: usize = 1200;

/// The most frames of the map; treated as samples are.
const FRAMES: usize = 32;

/// The most notices.
const NOTICES: usize = 200;

/// The longest notice, in bytes.
const NOTICE_BYTES: usize = 4096;

/// How much earlier than usual a state may come that becomes a sample or a frame, in milliseconds:
/// half the distance of two states.
const EARLY_MS: u64 = 50;

/// The time over which the rate of bytes of a state is taken, in milliseconds. With a limit, bytes
/// are sent in pieces that take longer than two states are apart.
const RATE_MS: u64 = 1000;

/// Records one migration: that of this process, or as a follower that of another one.
#[derive(Debug)]
pub struct Recorder {
    recording: Recording,
    samples: Thinned,
    frames: Thinned,
    rates: RatesByCell,
    /// What a sample's rates are computed from.
    sampled: Option<Sampled>,
}

/// Counts at the last sample.
#[derive(Debug, Clone, Copy)]
struct Sampled {
    at_ms: u64,
    bytes: u64,
    requests: u64,
    latency_us: f64,
}

/// Takes each state that is offered until there are too many, then every second one, and so on.
#[derive(Debug)]
struct Thinned {
    most: usize,
    /// Takes one of so many.
    every: u64,
    offered: u64,
}

impl Thinned {
    fn new(most: usize) -> Self {
        Self {
            most,
            every: 1,
            offered: 0,
        }
    }

    /// Whether to take what is offered now.
    fn takes(&mut self) -> bool {
        let takes = self.offered.is_multiple_of(self.every);
        self.offered += 1;
        takes
    }

    /// Drops every second entry while there are too many. The first one always stays.
    fn thin<T>(&mut self, entries: &mut Vec<T>) {
        while entries.len() > self.most {
            let mut number = 0_usize;
            entries.retain(|_| {
                number += 1;
                number % 2 == 1
            });
            self.every = self.every.saturating_mul(2);
        }
    }
}

impl Sampled {
    #[allow(clippy::cast_precision_loss)] // Rates for people.
    fn from_state(state: &State) -> Self {
        let requests = &state.requests;
        Self {
            at_ms: state.at_ms,
            bytes: state.bytes.of_pages_and_disks(),
            requests: requests.count,
            latency_us: requests.mean * requests.count as f64,
        }
    }
}

/// Whether a state at `at_ms` continues the list, whose entries since `begun_ms`, when the engine
/// began, have about equal distances.
fn is_due<T>(entries: &[T], begun_ms: u64, at_ms: u64, time: impl Fn(&T) -> u64) -> bool {
    let before = entries.partition_point(|entry| time(entry) < begun_ms);
    let entries = entries.get(before..).unwrap_or_default();
    let (Some(first), Some(last)) = (entries.first(), entries.last()) else {
        return true;
    };
    let distances = entries.len() as u64 - 1;
    let distance = time(last).saturating_sub(time(first)) / distances.max(1);
    let due = time(last).saturating_add(distance.saturating_sub(EARLY_MS));
    at_ms >= due
}

impl Recorder {
    /// An empty recording.
    pub fn new(migration: Migration) -> Self {
        Self {
            rates: RatesByCell::new(migration.memory.pages),
            recording: Recording {
                dirty_rates: Some(DirtyRates::default()),
                ..Recording::new(migration)
            },
            samples: Thinned::new(SAMPLES),
            frames: Thinned::new(FRAMES),
            sampled: None,
        }
    }

    /// Continues the recording of another process, whose records follow ([`apply`](Self::apply)).
    pub fn following(mut recording: Recording) -> Self {
        let (mut samples, mut frames) = (Thinned::new(SAMPLES), Thinned::new(FRAMES));
        samples.thin(&mut recording.samples);
        frames.thin(&mut recording.frames);
        let notices = &mut recording.notices;
        notices.drain(..notices.len().saturating_sub(NOTICES));
        if let Some(rates) = &mut recording.dirty_rates {
            rates.highest.truncate(MAX_CELLS);
            rates.mean.truncate(MAX_CELLS);
        }
        Self {
            sampled: recording.state.as_ref().map(Sampled::from_state),
            rates: RatesByCell::continuing(&recording),
            recording,
            samples,
            frames,
        }
    }

    /// Adds a record of the process that is followed. It need not get all states: those that are
    /// sampled are chosen by their times.
    pub fn apply(&mut self, record: StatusRecord) {
        match record {
            StatusRecord::Recording(recording) => *self = Self::following(*recording),
            StatusRecord::State(state) => self.add_followed(*state),
            StatusRecord::Notice(notice) => {
                self.notice(notice.at_ms, &notice.text);
            }
            StatusRecord::End(end) => self.end(end),
        }
    }

    fn add_followed(&mut self, state: State) {
        let begun_ms = self.recording.engines.last().map_or(0, |it| it.begun_ms);
        let (samples, frames) = (&self.recording.samples, &self.recording.frames);
        let samples = is_due(samples, begun_ms, state.at_ms, |sample| sample.at_ms);
        let frames = is_due(frames, begun_ms, state.at_ms, |frame| frame.at_ms);
        if samples {
            let sample = self.sample(&state);
            self.recording.samples.push(sample);
            self.samples.thin(&mut self.recording.samples);
        }
        if frames {
            self.add_frame(state.at_ms, state.map.clone());
            self.frames.thin(&mut self.recording.frames);
        }
        self.set_state(state);
    }

    /// What was recorded so far.
    pub fn recording(&self) -> &Recording {
        &self.recording
    }

    /// The recording, when nothing more is added.
    pub fn into_recording(self) -> Recording {
        self.recording
    }

    /// Adds the present state. Called at equal distances.
    pub fn add(&mut self, state: State) {
        if self.samples.takes() {
            let sample = self.sample(&state);
            self.recording.samples.push(sample);
            self.samples.thin(&mut self.recording.samples);
        }
        if self.frames.takes() {
            self.add_frame(state.at_ms, state.map.clone());
            self.frames.thin(&mut self.recording.frames);
        }
        self.set_state(state);
    }

    fn set_state(&mut self, state: State) {
        if let Some(rates) = &mut self.recording.dirty_rates {
            self.rates.add(&state, rates);
        }
        self.recording.state = Some(state);
    }

    /// Adds a notice.
    pub fn notice(&mut self, at_ms: u64, text: &str) -> Notice {
        let notice = Notice {
            at_ms,
            text: prefix(text, NOTICE_BYTES).to_owned(),
        };
        let notices = &mut self.recording.notices;
        if notices.len() >= NOTICES {
            notices.remove(0);
        }
        notices.push(notice.clone());
        notice
    }

    /// The migration has ended: the last state becomes a frame.
    pub fn end(&mut self, end: End) {
        let last = self.recording.state.as_ref();
        let last = last.map(|state| (state.at_ms, state.map.clone()));
        let recorded = self.recording.frames.last().map(|frame| frame.at_ms);
        if let Some((at_ms, map)) = last
            && recorded != Some(at_ms)
        {
            self.add_frame(at_ms, map);
        }
        self.recording.end = Some(end);
    }

    fn add_frame(&mut self, at_ms: u64, map: Map) {
        self.recording.frames.push(Frame { at_ms, map });
    }

    #[allow(clippy::cast_precision_loss)] // Rates for people.
    fn sample(&mut self, state: &State) -> Sample {
        let now = Sampled::from_state(state);
        let before = self.sampled.replace(now).unwrap_or(Sampled {
            at_ms: 0,
            bytes: 0,
            requests: 0,
            latency_us: 0.0,
        });
        let seconds = now.at_ms.saturating_sub(before.at_ms) as f64 / 1e3;
        let rate = |count: u64| match seconds > 0.0 {
            true => count as f64 / seconds,
            false => 0.0,
        };
        let answered = now.requests.saturating_sub(before.requests);
        let is_near = now.at_ms.saturating_sub(before.at_ms) <= RATE_MS;
        Sample {
            at_ms: state.at_ms,
            phase: state.phase,
            bytes_per_second: match is_near {
                true => state.bytes_per_second,
                false => rate(now.bytes.saturating_sub(before.bytes)),
            },
            dirty_pages_per_second: state.dirty_pages_per_second,
            missing_pages: state.missing_pages,
            waiting_pages: state.waiting_pages,
            requests_per_second: rate(answered),
            latency_us: (answered > 0)
                .then(|| ((now.latency_us - before.latency_us) / answered as f64).max(0.0)),
        }
    }
}

/// The first `most` bytes, or fewer: whole characters.
fn prefix(text: &str, most: usize) -> &str {
    if text.len() <= most {
        return text;
    }
    let end = (0..=most).rev().find(|&end| text.is_char_boundary(end));
    text.get(..end.unwrap_or(0)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::examples::{migration, state};

    #[test]
    fn a_long_migration_has_samples_at_equal_distances() {
        let mut recorder = Recorder::new(migration());
        for tenth in 0..10_000 {
            recorder.add(state(tenth * 100));
        }
        let recording = recorder.recording();
        let times: Vec<u64> = recording.samples.iter().map(|s| s.at_ms).collect();
        assert!(
            times.len() <= SAMPLES && times.len() > SAMPLES / 2,
            "{}",
            times.len()
        );
        let step = times[1] - times[0];
        assert!(times.windows(2).all(|pair| pair[1] - pair[0] == step));
        assert_eq!(times[0], 0);
        assert!(recording.frames.len() <= FRAMES);
        assert_eq!(recording.state.as_ref().map(|s| s.at_ms), Some(999_900));
    }

    /// Samples that are nearer have the rate of the state, which is that of a second: the pieces in
    /// which bytes are sent are not seen as a rate that comes and goes.
    #[test]
    fn rates_are_those_since_the_sample_before_or_of_a_second() {
        let mut recorder = Recorder::new(migration());
        let mut first = state(0);
        first.bytes.precopy = 1000;
        recorder.add(first);
        let mut second = state(500);
        second.bytes.precopy = 3000;
        second.bytes.urgent = 1000;
        second.bytes_per_second = 4500.0;
        second.requests.count = 4;
        second.requests.mean = 25.0;
        recorder.add(second);
        let mut third = state(2500);
        third.bytes.precopy = 5000;
        third.bytes.urgent = 1000;
        third.requests.count = 8;
        third.requests.mean = 50.0;
        recorder.add(third);
        let samples = &recorder.recording().samples;
        assert!((samples[1].bytes_per_second - 4500.0).abs() < 1e-9);
        assert!((samples[2].bytes_per_second - 1000.0).abs() < 1e-9);
        assert!((samples[1].requests_per_second - 8.0).abs() < 1e-9);
        assert_eq!(samples[1].latency_us, Some(25.0));
        assert_eq!(samples[2].latency_us, Some(75.0));
    }

    #[test]
    fn the_last_map_is_a_frame() {
        let mut recorder = Recorder::new(migration());
        for tenth in 0..100 {
            recorder.add(state(tenth * 100));
        }
        recorder.end(End {
            at_ms: 9950,
            exit_status: 0,
            reason: "moved".into(),
            message: "moved".into(),
            next: None,
            account: None,
        });
        let frames = &recorder.recording().frames;
        assert_eq!(frames.last().map(|frame| frame.at_ms), Some(9900));
        assert_eq!(frames.first().map(|frame| frame.at_ms), Some(0));
    }

    /// What a follower has that connected after `begun` states, and gets every `step`th one since.
    fn followed(begun: u64, step: usize, states: u64) -> (Recording, Recording) {
        let mut recorder = Recorder::new(migration());
        let counted = |tenth: u64| {
            let mut state = state(tenth * 100);
            state.bytes.precopy = tenth * 1000;
            state.bytes_per_second = 10_000.0;
            state
        };
        (0..begun).for_each(|tenth| recorder.add(counted(tenth)));
        let mut follower = Recorder::following(recorder.recording().clone());
        for tenth in begun..states {
            recorder.add(counted(tenth));
            if tenth % step as u64 == 0 {
                follower.apply(StatusRecord::State(Box::new(counted(tenth))));
            }
        }
        (recorder.recording, follower.recording)
    }

    #[test]
    fn a_follower_has_the_samples_of_the_process_that_it_follows() {
        for begun in [1, 2, 1000, 5000] {
            let (recorded, followed) = followed(begun, 1, 9000);
            assert_eq!(followed.state, recorded.state);
            let times = |recording: &Recording| {
                let samples = recording.samples.iter().map(|sample| sample.at_ms);
                samples.collect::<Vec<_>>()
            };
            assert_eq!(times(&followed), times(&recorded), "{begun}");
            // All have the same rate, except the first ones.
            let rates = followed.samples.iter().skip(2).map(|s| s.bytes_per_second);
            rates.for_each(|rate| assert!((rate - 10_000.0).abs() < 1.0, "{rate}"));
        }
    }

    #[test]
    fn a_follower_that_misses_states_is_bounded_too() {
        let (_, followed) = followed(1000, 7, 50_000);
        let samples = followed.samples.len();
        assert!((SAMPLES / 4..=SAMPLES).contains(&samples), "{samples}");
        let frames = followed.frames.len();
        assert!((FRAMES / 4..=FRAMES).contains(&frames), "{frames}");
    }

    /// All states are due then.
    #[test]
    fn a_process_whose_time_does_not_pass_can_be_followed() {
        let mut follower = Recorder::following(Recorder::new(migration()).recording);
        for _ in 0..3000 {
            follower.apply(StatusRecord::State(Box::new(state(100))));
        }
        assert!(follower.recording().frames.len() <= FRAMES);
    }

    #[test]
    fn a_recording_that_is_too_long_is_thinned() {
        let mut recorder = Recorder::new(migration());
        for tenth in 0..20 {
            recorder.add(state(tenth * 100));
        }
        let mut long = recorder.recording().clone();
        long.samples = std::iter::repeat_n(long.samples[0], 10 * SAMPLES).collect();
        long.frames = std::iter::repeat_n(long.frames[0].clone(), 10 * FRAMES).collect();
        let notice = Notice {
            at_ms: 1,
            text: "a notice".into(),
        };
        long.notices = std::iter::repeat_n(notice, 10 * NOTICES).collect();
        let mut follower = Recorder::new(migration());
        follower.apply(StatusRecord::Recording(Box::new(long)));
        let bounded = follower.recording();
        assert!(bounded.samples.len() <= SAMPLES && bounded.samples.len() > SAMPLES / 2);
        assert!(bounded.frames.len() <= FRAMES && bounded.frames.len() > FRAMES / 2);
        assert_eq!(bounded.notices.len(), NOTICES);
    }

    #[test]
    fn a_follower_applies_notices_and_the_end() {
        let mut follower = Recorder::following(Recorder::new(migration()).recording);
        follower.apply(StatusRecord::State(Box::new(state(100))));
        for number in 0..300 {
            follower.apply(StatusRecord::Notice(Notice {
                at_ms: number,
                text: "x".repeat(2 * NOTICE_BYTES),
            }));
        }
        let end = End {
            at_ms: 950,
            exit_status: 0,
            reason: "moved".into(),
            message: "moved".into(),
            next: None,
            account: None,
        };
        follower.apply(StatusRecord::End(end.clone()));
        let recording = follower.recording();
        assert_eq!(recording.notices.len(), NOTICES);
        let last = recording.notices.last().unwrap();
        assert_eq!((last.at_ms, last.text.len()), (299, NOTICE_BYTES));
        assert_eq!(recording.end, Some(end));
        assert_eq!(recording.frames.last().map(|frame| frame.at_ms), Some(100));
    }

    #[test]
    fn notices_are_bounded() {
        let mut recorder = Recorder::new(migration());
        for number in 0..300 {
            recorder.notice(number, &"é".repeat(3000));
        }
        let notices = &recorder.recording().notices;
        assert_eq!(notices.len(), NOTICES);
        assert_eq!(notices.last().map(|notice| notice.at_ms), Some(299));
        assert!(
            notices
                .iter()
                .all(|notice| notice.text.len() <= NOTICE_BYTES)
        );
    }
}
