//! Adds to a recording, and keeps it bounded.

use crate::{End, Frame, Map, Migration, Notice, Recording, Sample, State, VERSION};

/// The most samples. When there are more, every second one is dropped, and from then on half as
/// many are taken.
const SAMPLES: usize = 1200;

/// The most frames of the map; treated as samples are.
const FRAMES: usize = 32;

/// The most notices.
const NOTICES: usize = 200;

/// The longest notice, in bytes.
const NOTICE_BYTES: usize = 4096;

/// Records one migration.
#[derive(Debug)]
pub struct Recorder {
    recording: Recording,
    samples: Thinned,
    frames: Thinned,
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

    /// Drops every second entry if there are too many. The first one always stays.
    fn thin<T>(&mut self, entries: &mut Vec<T>) {
        if entries.len() <= self.most {
            return;
        }
        let mut number = 0_usize;
        entries.retain(|_| {
            number += 1;
            number % 2 == 1
        });
        self.every *= 2;
    }
}

impl Recorder {
    /// An empty recording.
    pub fn new(migration: Migration) -> Self {
        Self {
            recording: Recording {
                version: VERSION,
                migration,
                samples: Vec::new(),
                frames: Vec::new(),
                notices: Vec::new(),
                state: None,
                end: None,
            },
            samples: Thinned::new(SAMPLES),
            frames: Thinned::new(FRAMES),
            sampled: None,
        }
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
        let bytes = &state.bytes;
        let now = Sampled {
            at_ms: state.at_ms,
            bytes: bytes.precopy + bytes.urgent + bytes.background,
            requests: state.requests.count,
            latency_us: state.requests.mean_us * state.requests.count as f64,
        };
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
        Sample {
            at_ms: state.at_ms,
            phase: state.phase,
            bytes_per_second: rate(now.bytes.saturating_sub(before.bytes)),
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

    #[test]
    fn rates_are_those_since_the_sample_before() {
        let mut recorder = Recorder::new(migration());
        let mut first = state(0);
        first.bytes.precopy = 1000;
        recorder.add(first);
        let mut second = state(500);
        second.bytes.precopy = 3000;
        second.bytes.urgent = 1000;
        second.requests.count = 4;
        second.requests.mean_us = 25.0;
        recorder.add(second);
        let mut third = state(1000);
        third.bytes.precopy = 4000;
        third.requests.count = 8;
        third.requests.mean_us = 50.0;
        recorder.add(third);
        let samples = &recorder.recording().samples;
        assert!((samples[1].bytes_per_second - 6000.0).abs() < 1e-9);
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
