//! The watch with a libvirt that is a script: its answers can take as long as a test wants.

use super::*;

/// A moment in seconds.
fn at(seconds: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(seconds)
}

/// A domain of a daemon that does what the test says before it answers.
struct Scripted<'t> {
    runs: Mutex<bool>,
    was_reset: Mutex<bool>,
    /// What was asked for, in order.
    calls: Mutex<Vec<&'static str>>,
    /// What happens while the daemon pauses the guest.
    meanwhile: Box<dyn Fn() + 't>,
}

impl<'t> Scripted<'t> {
    fn new(runs: bool, meanwhile: impl Fn() + 't) -> Self {
        Self {
            runs: Mutex::new(runs),
            was_reset: Mutex::new(false),
            calls: Mutex::default(),
            meanwhile: Box::new(meanwhile),
        }
    }

    fn change(&self, call: &'static str, runs: bool) {
        self.calls.lock().unwrap().push(call);
        *self.runs.lock().unwrap() = runs;
    }

    fn calls(&self) -> Vec<&'static str> {
        self.calls.lock().unwrap().clone()
    }
}

impl Guest for Scripted<'_> {
    fn is_running(&self) -> bool {
        *self.runs.lock().unwrap()
    }

    fn was_reset(&self) -> Option<bool> {
        Some(*self.was_reset.lock().unwrap())
    }

    fn suspend(&self) -> Result<(), String> {
        (self.meanwhile)();
        self.change("suspend", false);
        Ok(())
    }

    fn resume(&self) -> Result<(), String> {
        self.change("resume", true);
        Ok(())
    }
}

/// A watch without its thread.
fn watch() -> DomainWatch {
    DomainWatch(Arc::new(Shared {
        daemon: Daemon::new("test:///none", "uuid", "guest"),
        name: "guest".to_owned(),
        state: Mutex::default(),
        changed: Condvar::new(),
    }))
}

fn harm(watch: &DomainWatch) -> Option<String> {
    watch.take_harm().map(|harm| harm.to_string())
}

#[test]
fn a_guest_that_is_resumed_after_the_handover_is_paused_again() {
    let watch = watch();
    let domain = Scripted::new(true, || {});
    watch.handing_over(Some(at(10)));
    watch.0.handle(DomainEvent::Resumed(at(11)), &domain);
    assert_eq!(domain.calls(), ["suspend"]);
    let harm = harm(&watch).unwrap();
    assert!(harm.contains("It is paused again"), "{harm}");
}

/// Its owner had paused and resumed it before the move paused it. The events come after the
/// handover.
#[test]
fn what_was_done_before_the_pause_is_not_harm() {
    let watch = watch();
    let domain = Scripted::new(false, || {});
    watch.handing_over(Some(at(10)));
    watch.0.handle(DomainEvent::Resumed(at(9)), &domain);
    watch.0.handle(DomainEvent::Reset(at(9)), &domain);
    assert_eq!(harm(&watch), None);
    assert_eq!(domain.calls(), [""; 0]);
    // It runs all the same: the clock was set back.
    let domain = Scripted::new(true, || {});
    watch.0.handle(DomainEvent::Resumed(at(9)), &domain);
    assert_eq!(domain.calls(), ["suspend"]);
    assert!(harm(&watch).is_some());
}

/// A reset between the pause and *commit* changes memory that was sent already.
#[test]
fn a_reset_after_the_pause_is_harm_whenever_its_event_comes() {
    for first in [false, true] {
        let watch = watch();
        let domain = Scripted::new(false, || {});
        let reset = || watch.0.handle(DomainEvent::Reset(at(11)), &domain);
        if first {
            reset();
        }
        watch.handing_over(Some(at(10)));
        if !first {
            reset();
        }
        let harm = harm(&watch).unwrap();
        assert!(harm.contains("was reset at the source"), "{harm}");
    }
}

/// A client has resumed and suspended it between the pause and *commit*: its memory is not that of
/// the saved devices.
#[test]
fn a_guest_that_ran_between_the_pause_and_commit_is_noticed() {
    for (event, what) in [
        (DomainEvent::Resumed(at(11)), "has resumed its guest"),
        (DomainEvent::Reset(at(11)), "has reset its guest"),
    ] {
        let watch = watch();
        let domain = Scripted::new(false, || {});
        watch.check_untouched(at(10)).unwrap();
        watch.0.handle(event, &domain);
        let found = watch.check_untouched(at(10)).unwrap_err().to_string();
        assert!(found.contains(what), "{found}");
        // It was paused later.
        watch.check_untouched(at(12)).unwrap();
        // The event came after the check.
        watch.handing_over(Some(at(10)));
        assert!(harm(&watch).is_some());
    }
}

/// The daemon was restarted, and another client was connected first: its reset has no event here.
#[test]
fn a_reset_while_the_watch_is_not_connected_is_harm() {
    // Whether the watch was connected before the handover, and whether the reset came first.
    for (connected, first) in [(true, false), (true, true), (false, true)] {
        let watch = watch();
        let domain = Scripted::new(false, || {});
        if connected {
            watch.0.looked(&domain);
        }
        if first {
            *domain.was_reset.lock().unwrap() = true;
        }
        watch.handing_over(Some(at(10)));
        if !first {
            watch.0.looked(&domain);
            assert_eq!(harm(&watch), None);
            *domain.was_reset.lock().unwrap() = true;
        }
        // The next connection.
        watch.0.looked(&domain);
        let reported = harm(&watch).unwrap();
        assert!(reported.contains("was reset at the source"), "{reported}");
        // It is reported once.
        watch.0.looked(&domain);
        assert_eq!(harm(&watch), None);
    }
}

/// QEMU says the same of a guest that has never run, and of one whose reset was reported before.
#[test]
fn a_guest_that_was_reset_before_the_handover_is_not_harmed() {
    for paused in [Some(at(10)), None] {
        let watch = watch();
        let domain = Scripted::new(false, || {});
        *domain.was_reset.lock().unwrap() = true;
        // By another engine, which has reported it.
        if paused.is_some() {
            watch.0.looked(&domain);
        }
        watch.handing_over(paused);
        watch.0.looked(&domain);
        watch.0.looked(&domain);
        assert_eq!(harm(&watch), None);
    }
}

/// Its event came, too.
#[test]
fn a_reset_with_an_event_is_reported_once() {
    let watch = watch();
    let domain = Scripted::new(false, || {});
    watch.handing_over(Some(at(10)));
    *domain.was_reset.lock().unwrap() = true;
    watch.0.handle(DomainEvent::Reset(at(11)), &domain);
    assert!(harm(&watch).is_some());
    watch.0.looked(&domain);
    assert_eq!(harm(&watch), None);
}

/// The move fails while a slow daemon pauses the guest: it runs again.
#[test]
fn a_guest_that_is_taken_back_while_it_is_paused_again_runs() {
    let watch = watch();
    let domain = Scripted::new(true, || watch.taken_back());
    watch.handing_over(Some(at(10)));
    watch.0.handle(DomainEvent::Resumed(at(11)), &domain);
    assert_eq!(domain.calls(), ["suspend", "resume"]);
    assert!(domain.is_running());
    assert_eq!(harm(&watch), None);
}

/// Its owner resumes it then, or hikkoshi.
#[test]
fn a_guest_that_was_taken_back_is_left_alone() {
    let watch = watch();
    let domain = Scripted::new(true, || {});
    watch.handing_over(Some(at(10)));
    watch.taken_back();
    watch.0.handle(DomainEvent::Resumed(at(11)), &domain);
    watch.0.handle(DomainEvent::Reset(at(12)), &domain);
    assert_eq!(domain.calls(), [""; 0]);
    assert_eq!(harm(&watch), None);
}

/// hikkoshi ends it.
#[test]
fn a_domain_that_is_ending_is_left_alone() {
    let watch = watch();
    let domain = Scripted::new(true, || {});
    watch.handing_over(None);
    watch.ending();
    watch.0.handle(DomainEvent::Resumed(at(11)), &domain);
    assert_eq!(domain.calls(), [""; 0]);
    assert_eq!(harm(&watch), None);
}
