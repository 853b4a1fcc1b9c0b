//! A change from one thread while the engine decides on another.

use super::*;
use loom::thread;

fn begun(mode: Mode) -> (SourceControl, CancelFlag) {
    let options = SourceOptions {
        mode,
        ..SourceOptions::default()
    };
    let (control, cancel) = (SourceControl::new(), CancelFlag::new());
    control.begin(&options, SourceStage::Owned, &cancel);
    control.begin_precopy();
    (control, cancel)
}

/// A request to end pre-copy that is accepted while pre-copy ends is obeyed, and one that is
/// refused was too late. A thread that sends pages sees it before the end of the round does.
#[test]
fn loom_model_an_accepted_switch_starts_post_copy() {
    loom::model(|| {
        let (control, _) = begun(Mode::Hybrid);
        let engine = control.clone();
        let thread = thread::spawn(move || {
            let seen = engine.ends_precopy();
            let result = engine.end_precopy(false, |_| true);
            assert!(!seen || result == Some(PrecopyResult::StartPostcopy));
            result
        });
        let accepted = control.switch();
        let result = thread.join().unwrap();
        let expected = match accepted {
            Ok(()) => PrecopyResult::StartPostcopy,
            Err(_) => PrecopyResult::Converged,
        };
        assert_eq!(result, Some(expected));
    });
}

/// A request to end pre-copy that comes while it begins is refused, or ends it.
#[test]
fn loom_model_a_switch_while_pre_copy_begins() {
    loom::model(|| {
        let options = SourceOptions {
            mode: Mode::Hybrid,
            ..SourceOptions::default()
        };
        let control = SourceControl::new();
        control.begin(&options, SourceStage::Owned, &CancelFlag::new());
        control.copy_disks();
        let engine = control.clone();
        let thread = thread::spawn(move || {
            engine.begin_precopy();
            engine.end_precopy(false, |_| false)
        });
        let accepted = control.switch();
        let result = thread.join().unwrap();
        match accepted {
            // It is obeyed, now or at the end of the next round.
            Ok(()) => assert!(control.ends_precopy()),
            Err(_) => assert_eq!(result, None),
        }
    });
}

/// Either the migration is cancelled, or the guest is handed over.
#[test]
fn loom_model_a_cancelled_guest_is_not_handed_over() {
    loom::model(|| {
        let (control, cancel) = begun(Mode::Precopy);
        let engine = control.clone();
        let thread = thread::spawn(move || engine.hand_over().is_ok());
        let cancelled = control.cancel().is_ok();
        let handed_over = thread.join().unwrap();
        assert!(cancelled != handed_over);
        assert_eq!(cancel.is_cancelled(), cancelled);
    });
}

/// A limit that is accepted is the one by which pre-copy ends.
#[test]
fn loom_model_an_accepted_downtime_decides() {
    loom::model(|| {
        let (control, _) = begun(Mode::Precopy);
        let default = control.max_downtime();
        let engine = control.clone();
        let thread = thread::spawn(move || {
            let mut decided = None;
            engine.end_precopy(false, |limit| {
                decided = Some(limit);
                true
            });
            decided
        });
        let new = Duration::from_millis(1);
        let accepted = control.change(LimitChange {
            max_downtime: Some(new),
            bandwidth: None,
        });
        let decided = thread.join().unwrap();
        assert_eq!(decided, Some(if accepted.is_ok() { new } else { default }));
    });
}
