//! What the destination was asked for besides, and has not done: both sides report it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hikkoshi_engine::Mode;

use crate::run::Setup;
use hikkoshi_lab::relay::{Fate, Message};

const LEFT: &str = "the guest is not persistent here: the disk is full";

#[test]
fn both_sides_report_what_was_not_done() {
    for mode in [Mode::Precopy, Mode::Postcopy, Mode::Hybrid] {
        let mut setup = Setup::new(mode);
        setup.destination.left_to_do = Some(LEFT.to_owned());
        let done = setup.run();
        let (calls, notices) = (done.destination_calls.count("complete"), done.notices.all());
        let (source, destination) = done.moved(true);
        assert_eq!(source.left_to_do.as_deref(), Some(LEFT), "{mode}");
        assert_eq!(destination.left_to_do.as_deref(), Some(LEFT), "{mode}");
        assert_eq!(calls, 1, "{mode}");
        assert!(
            notices.contains(&format!("at the destination: {LEFT}")),
            "{notices}"
        );
    }
}

#[test]
fn nothing_is_reported_if_nothing_is_left() {
    let done = Setup::new(Mode::Hybrid).run();
    let (source, destination) = done.moved(true);
    assert_eq!((source.left_to_do, destination.left_to_do), (None, None));
}

/// The links are lost right when the destination reports that all pages are there: it reports again
/// on new links.
#[test]
fn it_is_reported_again_after_the_links_were_lost() {
    for cut in ["LeftToDo", "Complete"] {
        let mut setup = Setup::new(Mode::Postcopy);
        setup.destination.left_to_do = Some(LEFT.to_owned());
        setup.retry_for(Duration::from_secs(40));
        let is_cut = AtomicBool::new(false);
        setup.relay(move |message: &Message| {
            if message.name == cut && !is_cut.swap(true, Ordering::Relaxed) {
                return Fate::CutBefore;
            }
            Fate::Pass
        });
        let done = setup.run();
        let (calls, notices) = (done.destination_calls.count("complete"), done.notices.all());
        let (source, destination) = done.moved(true);
        assert!(notices.contains("reconnected"), "{cut}: {notices}");
        assert_eq!(source.left_to_do.as_deref(), Some(LEFT), "{cut}");
        assert_eq!(destination.left_to_do.as_deref(), Some(LEFT), "{cut}");
        assert_eq!(calls, 1, "{cut}");
    }
}
