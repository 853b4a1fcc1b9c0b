//! What a side does not know has a dash on the live page, not a number.

use hikkoshi_account::{Converges, Mode, Side, State};
use hikkoshi_status::StatusRecord;
use hikkoshi_tests::recordings::RecordedCase;
use hikkoshi_tests::{ShownPage, count};

use crate::event_server::{EventServer, status};
use crate::feed::{Feed, legend, open};

/// Rows of the legend below the states: hot cells, and pages per second.
fn writes(shown: &ShownPage) -> [String; 2] {
    let rows = shown.table("Pages by state");
    [rows[7][1].clone(), rows[8][1].clone()]
}

/// Sends a changed state.
fn send(shown: &ShownPage, feed: &mut Feed<'_>, state: &State) {
    let record = StatusRecord::State(Box::new(state.clone()));
    feed.server.send(&status(&feed.name, &record));
    feed.recorder.add(state.clone());
    shown.wait_for_state(&feed.name, state.at_ms);
    assert_eq!(legend(shown), feed.legend());
}

#[test]
fn the_map_says_of_how_much_the_writes_are_known() {
    let server = EventServer::start();
    let shown = ShownPage::start();
    let recorded = RecordedCase::new("web", Mode::Hybrid).record();
    let mut feed = Feed::new(&server, &recorded, Side::Source);
    open(&shown, &server, &[&feed]);
    let pages = feed.recording().migration.memory.pages;
    feed.send_until(|state| state.at_ms == 2000);
    shown.wait_for_state(&feed.name, 2000);
    let mut state = feed.recording().state.clone().unwrap();
    let all: u64 = state.map.dirty_per_second.iter().sum();
    let dirty: u64 = state.map.dirty.iter().sum();
    assert!(all > 0 && dirty > 0);
    let names = |shown: &ShownPage| {
        let rows = legend(shown);
        [rows[2][0].clone(), rows[3][0].clone(), rows[3][1].clone()]
    };
    assert_eq!(
        names(&shown),
        [
            "Sent in pre-copy, clean since",
            "Sent, and dirty again",
            &count(dirty)
        ]
    );
    let [hot, rate] = writes(&shown);
    assert_eq!(rate, count(all));

    // A part of the first round.
    let mut at = |state: &mut State, rated: u64| {
        state.at_ms += 100;
        state.map.rated_pages = rated;
        send(&shown, &mut feed, state);
    };
    at(&mut state, pages / 2);
    let dirty_again = "Sent, and dirty again, as far as known";
    assert_eq!(
        names(&shown),
        ["Sent in pre-copy", dirty_again, &count(dirty)]
    );
    let [hot_so_far, rate] = writes(&shown);
    assert!(hot_so_far.ends_with(" so far"), "{hot_so_far}, {hot}");
    assert_eq!(rate, "–");

    // Nothing is known.
    state.map.dirty.clear();
    state.map.dirty_per_second.clear();
    state.dirty_pages_per_second = None;
    at(&mut state, 0);
    assert_eq!(
        names(&shown),
        ["Sent in pre-copy", "Sent, and dirty again", "–"]
    );
    assert_eq!(writes(&shown), ["–", "–"]);
    assert_eq!(shown.fact("Dirtied"), "none");

    // It writes nothing.
    state.dirty_pages_per_second = Some(0.0);
    at(&mut state, pages);
    assert_eq!(writes(&shown), ["0 cells", "0"]);

    state.converges = Some(Converges::Switches);
    at(&mut state, pages);
    let left = shown.fact("Time left");
    assert!(
        left.starts_with("about ") && left.ends_with("switches to post-copy"),
        "{left}"
    );
    shown.assert_clean();
}

/// A host that knows only the destination.
#[test]
fn a_destination_shows_no_round_and_nothing_as_sent() {
    let server = EventServer::start();
    let shown = ShownPage::start();
    let recorded = RecordedCase::new("web", Mode::Hybrid).record();
    let mut feed = Feed::new(&server, &recorded, Side::Destination);
    open(&shown, &server, &[&feed]);
    feed.send_until(|state| state.at_ms == 2000);
    shown.wait_for_state(&feed.name, 2000);
    assert_eq!(shown.browser.text(".phase").unwrap(), "Pre-copy");
    for bar in [".work progress", "nav svg.bar"] {
        let visible = format!("document.querySelector('{bar}').checkVisibility()");
        assert_eq!(shown.evaluate(&visible), false, "{bar}");
    }
    assert_eq!(shown.fact("Sent"), "none");
    assert!(
        shown.fact("Received").ends_with("iB"),
        "{}",
        shown.fact("Received")
    );
    assert_eq!(legend(&shown), feed.legend());
    assert_eq!(legend(&shown)[3], ["Dirty again at the source", "–"]);
    assert_eq!(writes(&shown), ["–", "–"]);
    shown.assert_clean();
}
