//! What is accepted and refused, by mode and phase.

use super::*;
use crate::source::options::WhenStalled;

const OWNED: SourceStage = SourceStage::Owned;

fn begun(mode: Mode, when_stalled: WhenStalled) -> (SourceControl, CancelFlag) {
    let options = SourceOptions {
        mode,
        when_stalled,
        max_downtime: Duration::from_millis(100),
        bandwidth: Some(1000),
        ..SourceOptions::default()
    };
    let (control, cancel) = (SourceControl::new(), CancelFlag::new());
    control.begin(&options, OWNED, &cancel);
    control.begin_precopy();
    (control, cancel)
}

fn of(mode: Mode) -> SourceControl {
    begun(mode, WhenStalled::Continue).0
}

fn bandwidth(limit: Option<u64>) -> LimitChange {
    LimitChange {
        bandwidth: Some(limit),
        ..LimitChange::default()
    }
}

fn downtime(ms: u64) -> LimitChange {
    LimitChange {
        max_downtime: Some(Duration::from_millis(ms)),
        ..LimitChange::default()
    }
}

#[test]
fn limits_are_changed_all_or_none() {
    let control = of(Mode::Precopy);
    let before = control.limits();
    assert_eq!(
        (before.max_downtime.as_millis(), before.bandwidth),
        (100, Some(1000))
    );
    let both = LimitChange {
        bandwidth: Some(None),
        ..downtime(7)
    };
    assert_eq!(control.change(both), Ok(before));
    let now = control.limits();
    assert_eq!((now.max_downtime.as_millis(), now.bandwidth), (7, None));
    // A hybrid migration has a bandwidth, and no limit of the downtime.
    let hybrid = of(Mode::Hybrid);
    let refused = ControlRefused::NoDowntimeLimit(Mode::Hybrid);
    assert_eq!(hybrid.change(both), Err(refused));
    assert_eq!(hybrid.limits(), before);
    assert_eq!(hybrid.change(bandwidth(Some(5))), Ok(before));
    assert_eq!(hybrid.limits().bandwidth, Some(5));
}

#[test]
fn a_limit_that_has_no_effect_is_refused() {
    let control = of(Mode::Precopy);
    assert_eq!(control.end_precopy(false, |_| false), None);
    let limit = |limit: Duration| limit.as_millis() == 100;
    let converged = Some(PrecopyResult::Converged);
    assert_eq!(control.end_precopy(false, limit), converged);
    let ended = Err(ControlRefused::PrecopyEnded);
    assert_eq!(control.change(downtime(1)), ended);
    // The last pages are sent with the limit.
    assert!(control.change(bandwidth(None)).is_ok());
    control.hand_over().unwrap();
    let all_sent = Err(ControlRefused::AllSent);
    assert_eq!(control.change(bandwidth(None)), all_sent);
    // In post-copy pages follow.
    let control = of(Mode::Postcopy);
    control.skip_precopy();
    control.hand_over().unwrap();
    control.follow(SourceStage::HandedOver);
    assert!(control.change(bandwidth(None)).is_ok());
    control.follow(SourceStage::Done);
    let ended = Err(ControlRefused::Ended);
    assert_eq!(control.change(bandwidth(None)), ended);
}

#[test]
fn pre_copy_ends_where_post_copy_may_follow() {
    assert_eq!(of(Mode::Hybrid).switch(), Ok(()));
    let (switching, _) = begun(Mode::Precopy, WhenStalled::Switch);
    assert_eq!(switching.switch(), Ok(()));
    assert_eq!(of(Mode::Precopy).switch(), Err(ControlRefused::NoPostcopy));
    assert_eq!(of(Mode::Postcopy).switch(), Err(ControlRefused::NoPrecopy));
    let control = of(Mode::Hybrid);
    assert!(!control.ends_precopy());
    control.switch().unwrap();
    control.switch().unwrap();
    assert!(control.ends_precopy());
    // Whatever the round has found.
    let post_copy = Some(PrecopyResult::StartPostcopy);
    assert_eq!(control.end_precopy(false, |_| true), post_copy);
    assert_eq!(control.switch(), Err(ControlRefused::PrecopyEnded));
    control.hand_over().unwrap();
    assert_eq!(control.switch(), Err(ControlRefused::HandingOver));
    control.follow(SourceStage::HandedOver);
    assert_eq!(control.switch(), Err(ControlRefused::InPostcopy));
}

#[test]
fn pre_copy_is_not_ended_before_it_begins() {
    let options = |mode| SourceOptions {
        mode,
        ..SourceOptions::default()
    };
    let begin = |mode| {
        let control = SourceControl::new();
        control.begin(&options(mode), OWNED, &CancelFlag::new());
        control
    };
    let control = begin(Mode::Hybrid);
    assert_eq!(control.switch(), Err(ControlRefused::Connecting));
    control.copy_disks();
    assert_eq!(control.switch(), Err(ControlRefused::CopyingDisks));
    assert!(!control.ends_precopy());
    // The limit is that of the disks, too.
    assert!(control.change(bandwidth(None)).is_ok());
    control.begin_precopy();
    assert_eq!(control.switch(), Ok(()));
    // What never has an effect is said at once.
    let control = begin(Mode::Precopy);
    control.copy_disks();
    assert_eq!(control.switch(), Err(ControlRefused::NoPostcopy));
    assert!(control.change(downtime(1)).is_ok());
    assert_eq!(control.cancel(), Ok(()));
    assert_eq!(
        begin(Mode::Postcopy).switch(),
        Err(ControlRefused::NoPrecopy)
    );
}

#[test]
fn a_migration_is_cancelled_until_the_guest_is_handed_over() {
    let (control, cancel) = begun(Mode::Hybrid, WhenStalled::Continue);
    control.cancel().unwrap();
    assert!(cancel.is_cancelled());
    assert!(matches!(control.hand_over(), Err(SourceFailure::Cancelled)));
    let (control, cancel) = begun(Mode::Hybrid, WhenStalled::Continue);
    control.hand_over().unwrap();
    assert_eq!(control.cancel(), Err(ControlRefused::HandingOver));
    control.follow(SourceStage::HandedOver);
    assert_eq!(control.cancel(), Err(ControlRefused::HandedOver));
    control.end();
    assert_eq!(control.cancel(), Err(ControlRefused::Ended));
    assert!(!cancel.is_cancelled());
}

#[test]
fn what_has_no_effect_after_another_request_is_refused() {
    // After a switch, the downtime depends on no limit.
    let (control, _) = begun(Mode::Precopy, WhenStalled::Switch);
    control.switch().unwrap();
    assert_eq!(control.change(downtime(1)), Err(ControlRefused::Switched));
    assert!(control.change(bandwidth(None)).is_ok());
    // After cancelling, by this control or by a signal, nothing has an effect.
    for by_signal in [false, true] {
        let (control, cancel) = begun(Mode::Precopy, WhenStalled::Switch);
        match by_signal {
            true => cancel.cancel(),
            false => control.cancel().unwrap(),
        }
        let cancelled = ControlRefused::Cancelled;
        assert_eq!(control.change(downtime(1)), Err(cancelled));
        assert_eq!(control.change(bandwidth(None)), Err(cancelled));
        assert_eq!(control.switch(), Err(cancelled));
        assert!(!control.ends_precopy());
        assert_eq!(control.cancel(), Ok(()), "again");
    }
    // A signal that comes too late changes nothing.
    let (control, cancel) = begun(Mode::Hybrid, WhenStalled::Continue);
    control.hand_over().unwrap();
    cancel.cancel();
    assert!(control.change(bandwidth(None)).is_ok());
}

#[test]
fn a_control_without_a_migration_refuses_everything() {
    let control = SourceControl::new();
    let refused = ControlRefused::NotBegun;
    assert_eq!(control.change(LimitChange::default()), Err(refused));
    assert_eq!(control.switch(), Err(refused));
    assert_eq!(control.cancel(), Err(refused));
}

#[test]
fn a_resumed_migration_begins_at_its_stage() {
    for (stage, refused) in [
        (SourceStage::Committed, ControlRefused::HandingOver),
        (SourceStage::HandedOver, ControlRefused::HandedOver),
    ] {
        let control = SourceControl::new();
        control.begin(&SourceOptions::default(), stage, &CancelFlag::new());
        assert_eq!(control.cancel(), Err(refused));
    }
}
