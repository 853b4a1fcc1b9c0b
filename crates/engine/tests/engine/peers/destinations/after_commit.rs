//! After *Commit*: the guest never resumes at the source by itself.

use std::time::Duration;

use error_reporter::Report;
use hikkoshi_engine::{CancelFlag, Mode, SourceOptions};
use hikkoshi_handover::Outcome;
use hikkoshi_pages::{Page, PageRange};
use hikkoshi_wire::{DestinationStage, Frame, ToDestination, ToSource};

use crate::machine::Side;
use crate::memory::SMALL;

use super::{
    apply, complete, discarded, migrated, migrated_with, read_owed_pages, read_until,
    receive_urgent, until_it_runs,
};

/// The guest's process at the destination has ended: if the guest has run there, the source does
/// not reconnect.
#[test]
fn a_destination_that_reports_the_guest_lost() {
    for heard_to_run in [true, false] {
        let (result, machine, _) = migrated(Mode::Postcopy, &CancelFlag::new(), |destination| {
            let (mut control, _background, _urgent) = until_it_runs(destination);
            if heard_to_run {
                control.1.control(&ToSource::GuestResumed).unwrap();
            }
            let reason = "a power cut".to_owned();
            control.1.control(&ToSource::GuestLost { reason }).unwrap();
        });
        let error = result.unwrap_err();
        let text = Report::new(&error).to_string();
        if heard_to_run {
            assert_eq!(error.outcome, Outcome::Lost);
            assert_eq!(text, "the guest has ended at the destination: a power cut");
        } else {
            assert_eq!(error.outcome, Outcome::Paused);
            assert_eq!(text, "the destination failed: a power cut");
        }
        // The source does not resume its stale copy of the guest: only its owner may decide that.
        assert_eq!(machine.runs(), None);
    }
}

/// It reports that it runs the guest, and then that it never will.
#[test]
fn a_destination_that_declines_a_running_guest() {
    let declined = || ToSource::Declined {
        reason: "it is mine".into(),
    };
    let options = SourceOptions {
        mode: Mode::Postcopy,
        ..SourceOptions::default()
    };
    let asked = SourceOptions {
        retry_for: Duration::from_secs(2).into(),
        ..options.clone()
    };
    let never = CancelFlag::new();
    let reported = migrated_with(&options, &never, |destination| {
        let (mut control, _background, _urgent) = until_it_runs(destination);
        control.1.control(&ToSource::GuestResumed).unwrap();
        control.1.control(&declined()).unwrap();
    });
    let answered = migrated_with(&asked, &never, |destination| {
        let mut ends = until_it_runs(destination);
        ends.0.1.control(&ToSource::GuestResumed).unwrap();
        destination.close_links();
        while let Some(mut control) = destination.reconnected() {
            let _ = control.1.control(&resume_reply(DestinationStage::Declined));
            while control.0.control::<ToDestination>().is_ok() {}
        }
    });
    for (result, machine, calls) in [reported, answered] {
        let error = result.unwrap_err();
        assert_eq!(error.outcome, Outcome::AtDestination, "{error}");
        let text = Report::new(&error).to_string();
        assert!(text.contains("after it reported that it runs it"), "{text}");
        assert!(!calls.contains(&"resume"));
        assert_eq!(machine.runs(), None);
        machine.check(Side::Source);
    }
}

fn resume_reply(stage: DestinationStage) -> ToSource {
    ToSource::ResumeReply {
        stage,
        host_pages: vec![SMALL, SMALL],
        background_links: 1,
    }
}

#[test]
fn a_destination_that_claims_to_have_every_page() {
    let (result, machine, calls) = migrated(Mode::Postcopy, &CancelFlag::new(), |destination| {
        let (mut control, _background, _urgent) = until_it_runs(destination);
        control.1.control(&ToSource::GuestResumed).unwrap();
        control.1.control(&complete()).unwrap();
    });
    let error = result.unwrap_err();
    assert_eq!(error.outcome, Outcome::AtDestination);
    assert!(
        Report::new(&error).to_string().starts_with(
            "sending pages to the running guest: the peer broke the protocol: the destination \
             reports that it has every page, but "
        ),
        "{error}"
    );
    assert!(!calls.contains(&"resume"));
    assert_eq!(machine.runs(), None);
    machine.check(Side::Source);
}

/// On a new connection it reports that no page is missing, although some pages were never sent.
#[test]
fn a_destination_that_claims_to_have_every_page_after_a_reconnect() {
    let nothing_missing = [
        resume_reply(DestinationStage::Running),
        ToSource::MissingEnd { pages: 0 },
    ];
    for messages in [
        &[resume_reply(DestinationStage::Complete)][..],
        &nothing_missing,
    ] {
        let options = SourceOptions {
            mode: Mode::Postcopy,
            retry_for: Duration::from_secs(2).into(),
            ..SourceOptions::default()
        };
        let (result, machine, calls) = migrated_with(&options, &CancelFlag::new(), |destination| {
            let mut ends = until_it_runs(destination);
            ends.0.1.control(&ToSource::GuestResumed).unwrap();
            destination.close_links();
            while let Some(mut control) = destination.reconnected() {
                for message in messages {
                    let _ = control.1.control(message);
                }
                while control.0.control::<ToDestination>().is_ok() {}
            }
        });
        let error = result.unwrap_err();
        assert_eq!(error.outcome, Outcome::AtDestination, "{error}");
        let text = Report::new(&error).to_string();
        assert!(
            text.contains("the destination reports that it has every page, but "),
            "{text}"
        );
        assert!(!calls.contains(&"resume"));
        assert_eq!(machine.runs(), None);
        machine.check(Side::Source);
    }
}

/// The guest has moved, and the destination keeps sending: the source ends nevertheless.
#[test]
fn a_destination_that_sends_endlessly() {
    let (result, _, calls) = migrated(Mode::Postcopy, &CancelFlag::new(), |destination| {
        let (mut control, background, mut urgent) = destination.accept();
        apply(background);
        discarded(&mut control);
        let owed = read_owed_pages(&mut control);
        // Everything is requested before *Commit*, and nothing is pushed.
        let range = PageRange::from_len(Page::new(0), 2048);
        urgent.1.frame(Frame::Request { range }).unwrap();
        receive_urgent(&mut urgent, owed);
        control.1.control(&ToSource::Ready).unwrap();
        read_until(&mut control, "Commit");
        control.1.control(&ToSource::GuestResumed).unwrap();
        control.1.control(&complete()).unwrap();
        for _ in 0..1000 {
            if control.1.control(&ToSource::Discarded).is_err() {
                return;
            }
        }
    });
    result.unwrap();
    assert!(!calls.contains(&"resume"));
}
