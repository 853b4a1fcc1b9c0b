//! A recorded migration that is sent to the live page, state by state.

use hikkoshi_account::{Side, State};
use hikkoshi_status::{End, Recorder, Recording, StatusRecord};
use hikkoshi_tests::recordings::RecordedMigration;
use hikkoshi_tests::{ShownPage, legend_of};

use crate::event_server::{EventServer, status};

/// One side of a recorded migration that is sent to the page, state by state.
pub(crate) struct Feed<'a> {
    pub(crate) server: &'a EventServer,
    pub(crate) name: String,
    pub(crate) recorded: &'a RecordedMigration,
    pub(crate) side: Side,
    pub(crate) recorder: Recorder,
    pub(crate) sent: usize,
}

impl<'a> Feed<'a> {
    pub(crate) fn new(
        server: &'a EventServer,
        recorded: &'a RecordedMigration,
        side: Side,
    ) -> Self {
        let recorder = recorded.recorder(side);
        let name = format!("{}-{side:?}", recorder.recording().migration.guest);
        Self {
            server,
            name,
            recorded,
            side,
            recorder,
            sent: 0,
        }
    }

    /// What a new connection gets of it.
    pub(crate) fn first(&self) -> String {
        status(
            &self.name,
            &StatusRecord::Recording(Box::new(self.recorder.recording().clone())),
        )
    }

    /// Sends the next states until one is as said, and all if none is.
    pub(crate) fn send_until(&mut self, last: impl Fn(&State) -> bool) {
        for state in self.recorded.states_of(self.side).skip(self.sent) {
            self.server.send(&status(
                &self.name,
                &StatusRecord::State(Box::new(state.clone())),
            ));
            self.recorder.add(state.clone());
            self.sent += 1;
            if last(state) {
                break;
            }
        }
    }

    pub(crate) fn end(&mut self) {
        let end: End = self.recorded.end_of(self.side).clone();
        self.server
            .send(&status(&self.name, &StatusRecord::End(end.clone())));
        self.recorder.end(end);
    }

    pub(crate) fn recording(&self) -> &Recording {
        self.recorder.recording()
    }

    pub(crate) fn at_ms(&self) -> u64 {
        self.recording().state.as_ref().unwrap().at_ms
    }

    /// What the legend of the map must show.
    pub(crate) fn legend(&self) -> Vec<[String; 2]> {
        legend_of(self.recording())
    }
}

/// Opens the page with these feeds.
pub(crate) fn open(shown: &ShownPage, server: &EventServer, feeds: &[&Feed<'_>]) {
    server.begin_with(feeds.iter().map(|feed| feed.first()).collect());
    shown.open(&server.url);
    let all = format!("hikkoshi.live.recordings.size === {}", feeds.len());
    shown.wait("the recordings", &all);
}

pub(crate) fn legend(shown: &ShownPage) -> Vec<[String; 2]> {
    let rows = shown.table("Pages by state").into_iter().take(7);
    rows.map(|row| [row[0].clone(), row[1].clone()]).collect()
}

pub(crate) fn stages(shown: &ShownPage) -> Vec<String> {
    let stages = shown.evaluate(
        "[...document.querySelectorAll('.stages [aria-current=step] strong')].map(e => e.textContent)",
    );
    serde_json::from_value(stages).unwrap()
}
