//! What a line shows, and what it leaves out.

use super::*;
use crate::output::progress::tests::at;
use hikkoshi_account::DiskCopy;
use hikkoshi_handover::{DestinationStage, SourceStage};

fn line(state: &State, columns: usize) -> String {
    ProgressLine::new("", state).text(columns)
}

#[test]
fn the_line_fits_into_every_terminal() {
    for (done, total) in [(0, 0), (0, 1), (1, 3), (3, 3), (u64::MAX, u64::MAX), (9, 3)] {
        for columns in 0..200 {
            let mut state = at(done, total);
            state.bytes.precopy = u64::MAX;
            for (phase, converges) in [
                (Phase::Precopy, None),
                (Phase::Precopy, Some(Converges::No)),
                (Phase::Postcopy, None),
            ] {
                (state.phase, state.converges) = (phase, converges);
                state.missing_pages = Some(u64::MAX);
                let line = line(&state, columns);
                assert!(
                    line.is_ascii() && line.len() < columns.max(1),
                    "{columns}: {line:?}"
                );
                let has_percentage = columns < 6 || line.contains('%') == (total > 0);
                assert!(!line.contains('\n') && has_percentage, "{line:?}");
                state.outages = vec![Outage {
                    from_ms: 0,
                    before_ms: 0,
                    to_ms: None,
                    until_ms: Some(u64::MAX),
                }];
                let line = self::line(&state, columns);
                assert!(line.is_ascii() && line.len() < columns.max(1), "{line:?}");
                state.outages.clear();
            }
        }
    }
}

#[test]
fn disks_are_counted_in_bytes() {
    let mut state = at(1, 9);
    state.phase = Phase::Disks;
    let disk = |copied_bytes, total_bytes| DiskCopy {
        name: "vda".into(),
        copied_bytes,
        total_bytes,
        in_sync: false,
    };
    state.disks = vec![disk(1 << 20, 3 << 20), disk(2 << 20, 3 << 20)];
    assert_eq!(
        ProgressLine::new("", &state).in_full(),
        "copying disks: 3.0 MiB of 6.0 MiB, 123.4 MiB/s"
    );
    assert!(line(&state, 60).contains(" 50% "), "{}", line(&state, 60));
    state.phase = Phase::Precopy;
    assert!(ProgressLine::new("", &state).in_full().contains("pages"));
    // A destination does not know of how many bytes.
    (state.phase, state.stage) = (
        Phase::Disks,
        Stage::Destination(DestinationStage::Receiving),
    );
    state.disks.clear();
    state.bytes.disks = Some(5 << 20);
    (state.dirty_pages_per_second, state.time_left) = (None, None);
    let text = "copying disks: 123.4 MiB/s, 5.0 MiB received";
    assert_eq!(ProgressLine::new("", &state).in_full(), text);
}

#[test]
fn a_narrow_terminal_shows_the_important_parts() {
    let mut state = at(25, 100);
    state.bytes.precopy = 1_288_490_189;
    let line = |columns| line(&state, columns);
    let wide = line(200);
    assert!(wide.starts_with(" pre-copy, round 3 [=======>"), "{wide}");
    let sent = "]  25% 123.4 MiB/s, 1.2 GiB sent, dirty 10.0 MiB/s, 3.5 s left";
    assert!(
        wide.ends_with(&format!("{sent} (2.0 s to 9.0 s)")),
        "{wide}"
    );
    assert!(line(100).ends_with(sent), "{}", line(100));
    assert!(
        line(85).ends_with("123.4 MiB/s, dirty 10.0 MiB/s, 3.5 s left"),
        "{}",
        line(85)
    );
    assert!(
        line(70).ends_with("123.4 MiB/s, 3.5 s left"),
        "{}",
        line(70)
    );
    assert!(line(46).contains('[') && line(46).contains("MiB/s"));
    assert_eq!(line(38), "pre-copy, round 3  25% 123.4 MiB/s");
    assert_eq!(line(25), "pre-copy, round 3  25%");
    assert_eq!(line(10), "25%");
}

/// It is the first thing that the line says, and what it means for the guest the second.
#[test]
fn an_outage_is_shown_instead_of_a_rate() {
    let mut state = at(63, 100);
    (state.phase, state.missing_pages) = (Phase::Postcopy, Some(37));
    (state.stage, state.waiting_pages) = (Stage::Destination(DestinationStage::Running), 3);
    assert!(!ProgressLine::new("", &state).is_alarm());
    state.at_ms = 20_300;
    state.outages = vec![Outage {
        from_ms: 8_000,
        before_ms: 0,
        to_ms: None,
        until_ms: Some(320_300),
    }];
    state.time_left = None;
    let shown = ProgressLine::new("", &state);
    assert!(shown.is_alarm());
    assert_eq!(
        shown.in_full(),
        "NO LINK for 12.3 s: 63 of 100 pages, the guest waits for 3 pages, 37 pages missing, \
         tried for 300.0 s more"
    );
    let narrow = line(&state, 60);
    assert_eq!(
        narrow,
        "NO LINK for 12.3 s  63% the guest waits for 3 pages"
    );
    // It began while the engine ran that this one replaces.
    (state.outages[0].from_ms, state.outages[0].before_ms) = (0, 4_000);
    assert!(line(&state, 60).starts_with("NO LINK for 24.3 s"));
}

/// Only the destination knows whether it was told to run the guest.
#[test]
fn an_outage_in_the_switchover_says_that_the_guest_is_paused() {
    let mut state = at(0, 0);
    (state.guest_at, state.waiting_pages) = (GuestAt::Paused, 0);
    for (stage, is) in [
        (Stage::Destination(DestinationStage::Ready), "is paused"),
        (Stage::Source(SourceStage::Committed), "may be paused"),
    ] {
        state.stage = stage;
        assert_eq!(
            waits(&state),
            format!("the guest {is} until there are links")
        );
    }
    (state.guest_at, state.stage) = (
        GuestAt::Destination,
        Stage::Destination(DestinationStage::Running),
    );
    assert_eq!(waits(&state), "the guest waits for no page yet");
}

#[test]
fn the_guest_has_a_name_where_there_is_room() {
    let state = at(25, 100);
    let line = ProgressLine::new("web-é", &state);
    assert!(
        line.in_full()
            .starts_with("web-?: pre-copy, round 3: 25 of")
    );
    assert!(line.text(200).starts_with("web-?:  pre-copy, round 3 ["));
    for columns in 0..200 {
        assert!(line.text(columns).len() < columns.max(1), "{columns}");
    }
    let narrow = line.text(70);
    assert!(
        narrow.contains("pre-copy") && !narrow.contains("web"),
        "{narrow}"
    );
}

/// A log has as much as a wide terminal.
#[test]
fn a_line_of_a_log_has_everything() {
    let mut state = at(25, 100);
    state.bytes.urgent = 5 << 20;
    assert_eq!(
        ProgressLine::new("", &state).in_full(),
        "pre-copy, round 3: 25 of 100 pages, 123.4 MiB/s, 5.0 MiB sent, dirty 10.0 MiB/s, \
         3.5 s left (2.0 s to 9.0 s)"
    );
    state.stage = Stage::Destination(DestinationStage::Receiving);
    let destination = ProgressLine::new("", &state).in_full();
    assert!(destination.contains(", 5.0 MiB received,"), "{destination}");
}

#[test]
fn precopy_that_does_not_converge_has_no_time_left() {
    let mut state = at(25, 100);
    state.converges = Some(Converges::No);
    for text in [line(&state, 200), ProgressLine::new("", &state).in_full()] {
        assert!(
            text.ends_with("dirty 10.0 MiB/s, does not converge"),
            "{text}"
        );
    }
    // It is more important than the rate of the guest's writes.
    assert!(line(&state, 80).ends_with("123.4 MiB/s, does not converge"));
}

/// Post-copy follows by itself: there is a time left.
#[test]
fn precopy_that_switches_has_a_time_left() {
    let mut state = at(25, 100);
    state.converges = Some(Converges::Switches);
    let text = ProgressLine::new("", &state).in_full();
    let end = "dirty 10.0 MiB/s, post-copy follows, 3.5 s left (2.0 s to 9.0 s)";
    assert!(text.ends_with(end), "{text}");
}

/// Of what it receives in pre-copy, it does not know in which round that is, or of how many
/// pages.
#[test]
fn a_destination_has_no_round_and_no_percentage() {
    let mut state = at(0, 0);
    state.round = 0;
    state.stage = Stage::Destination(DestinationStage::Receiving);
    state.bytes.precopy = 5 << 20;
    (state.dirty_pages_per_second, state.time_left) = (None, None);
    let text = "pre-copy: 123.4 MiB/s, 5.0 MiB received";
    assert_eq!(ProgressLine::new("", &state).in_full(), text);
    assert_eq!(
        line(&state, 100).trim_start(),
        "pre-copy 123.4 MiB/s, 5.0 MiB received"
    );
    assert_eq!(line(&state, 25), "pre-copy 123.4 MiB/s");
    assert_eq!(line(&state, 12), "pre-copy");
}

#[test]
fn post_copy_shows_what_the_guest_waits_for() {
    let mut state = at(25, 100);
    (state.phase, state.missing_pages) = (Phase::Postcopy, Some(75));
    state.requests.count = 4;
    state.requests.mean = 81.0;
    let text = line(&state, 200);
    assert!(
        text.contains(", 75 pages missing, faults 0.08 ms, 3.5 s left"),
        "{text}"
    );
    state.time_left = Some(TimeLeft {
        low_s: 2.0,
        likely_s: 3.5,
        high_s: None,
    });
    let text = line(&state, 200);
    assert!(text.ends_with("3.5 s left (at least 2.0 s)"), "{text}");
}
