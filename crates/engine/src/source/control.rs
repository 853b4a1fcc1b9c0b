//! What can be changed of a migration while it runs: limits, the end of pre-copy, the end of the
//! migration.
//!
//! Data flows one way. A caller changes something from any thread; the threads of the migration
//! read it at their next step: the bandwidth before each piece, the request to end pre-copy before
//! each range, the downtime at the end of each round. None of them waits for a caller: the lock is
//! held for a few instructions.
//!
//! A change that is accepted has an effect, and one that cannot have one any more is refused. So
//! the engine decides under the same lock that pre-copy has ended, and that the guest is handed
//! over.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use hikkoshi_handover::SourceStage;
use hikkoshi_link::Bandwidth;
use hikkoshi_linux::CancelFlag;
use hikkoshi_wire::Mode;
use thiserror::Error;

use crate::source::error::SourceFailure;
use crate::source::options::SourceOptions;
use crate::source::precopy::convergence::PrecopyResult;
use crate::sync::{AtomicBool, Mutex, Ordering};

/// Changes a migration while it runs. Clones change the same migration: the one that was given this
/// in its [`MigrateControl`](crate::MigrateControl).
#[derive(Debug, Clone)]
pub struct SourceControl(Arc<Shared>);

/// The limits of a migration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MigrationLimits {
    /// How long the guest may be paused, if pre-copy can control it.
    pub max_downtime: Duration,
    /// Limit on background traffic, in bytes a second.
    pub bandwidth: Option<u64>,
}

/// A change of limits.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LimitChange {
    /// The new limit of the downtime.
    pub max_downtime: Option<Duration>,
    /// The new limit of background traffic; `Some(None)`: none.
    pub bandwidth: Option<Option<u64>>,
}

/// Why a migration is not changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum ControlRefused {
    /// No migration has begun with this control.
    #[error("the migration has not begun")]
    NotBegun,
    /// The migration has ended.
    #[error("the migration has ended")]
    Ended,
    /// The downtime matters to pre-copy only.
    #[error(
        "the mode is {0}: the guest is paused until the destination is ready, whatever the limit \
         of the downtime"
    )]
    NoDowntimeLimit(Mode),
    /// Pre-copy has ended.
    #[error("pre-copy has ended, and the guest is being handed over")]
    PrecopyEnded,
    /// All pages have been sent.
    #[error("all pages have been sent, and the guest is being handed over")]
    AllSent,
    /// The mode has no pre-copy.
    #[error("the mode is postcopy: there is no pre-copy to end")]
    NoPrecopy,
    /// The mode has no post-copy.
    #[error(
        "the mode is precopy: the destination has not prepared for post-copy (start the migration \
         with --mode hybrid, or with --when-stalled switch)"
    )]
    NoPostcopy,
    /// *Commit* was or is being sent, and the destination has not answered.
    #[error(
        "it is too late: the destination is asked to run the guest, and may run it already (wait \
         for its answer)"
    )]
    HandingOver,
    /// The guest runs at the destination.
    #[error(
        "the guest already runs at the destination, and needs the pages that are still here: \
         cancelling would lose it (let the migration complete; if the destination is lost, end \
         this engine, and see --resume and --give-up)"
    )]
    HandedOver,
    /// The guest runs at the destination, pages follow.
    #[error("the guest already runs at the destination, and post-copy is in progress")]
    InPostcopy,
}

#[derive(Debug)]
struct Shared {
    bandwidth: Bandwidth,
    /// The same as `State::switch`, for the threads that send pages.
    switch: AtomicBool,
    state: Mutex<State>,
}

/// How far the migration is, as far as that decides what can be changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Step {
    NotBegun,
    /// Before the end of pre-copy.
    Precopy,
    /// Pre-copy has ended; the source may still resume the guest.
    Switchover,
    /// *Commit* was or is being sent.
    HandingOver,
    /// The destination has reported that the guest runs.
    HandedOver,
    Ended,
}

#[derive(Debug)]
struct State {
    step: Step,
    mode: Mode,
    may_postcopy: bool,
    /// Post-copy follows the switchover.
    postcopy: bool,
    max_downtime: Duration,
    switch: bool,
    cancelled: bool,
    cancel: CancelFlag,
}

impl Default for SourceControl {
    fn default() -> Self {
        Self::new()
    }
}

impl SourceControl {
    /// A control for one migration, which has not begun.
    pub fn new() -> Self {
        let options = SourceOptions::default();
        Self(Arc::new(Shared {
            bandwidth: Bandwidth::unlimited(),
            switch: AtomicBool::new(false),
            state: Mutex::new(State {
                step: Step::NotBegun,
                mode: options.mode,
                may_postcopy: false,
                postcopy: false,
                max_downtime: options.max_downtime,
                switch: false,
                cancelled: false,
                cancel: CancelFlag::new(),
            }),
        }))
    }

    /// The present limits.
    pub fn limits(&self) -> MigrationLimits {
        MigrationLimits {
            max_downtime: self.max_downtime(),
            bandwidth: self.0.bandwidth.get(),
        }
    }

    /// Changes limits: all that are given, or none. Returns those before.
    ///
    /// The bandwidth changes at once. The downtime is used at the end of the present round.
    ///
    /// # Errors
    /// If one of them would have no effect.
    pub fn change(&self, change: LimitChange) -> Result<MigrationLimits, ControlRefused> {
        self.with(|state| {
            state.must_run()?;
            let sends_nothing = state.step >= Step::HandingOver && !state.postcopy;
            if change.bandwidth.is_some() && sends_nothing {
                return Err(ControlRefused::AllSent);
            }
            if change.max_downtime.is_some() {
                match (state.mode, state.step) {
                    (Mode::Precopy, Step::NotBegun | Step::Precopy) => {}
                    (Mode::Precopy, _) => return Err(ControlRefused::PrecopyEnded),
                    (mode, _) => return Err(ControlRefused::NoDowntimeLimit(mode)),
                }
            }
            let before = MigrationLimits {
                max_downtime: state.max_downtime,
                bandwidth: self.0.bandwidth.get(),
            };
            if let Some(bandwidth) = change.bandwidth {
                self.0.bandwidth.set(bandwidth);
            }
            state.max_downtime = change.max_downtime.unwrap_or(state.max_downtime);
            Ok(before)
        })
    }

    /// Ends pre-copy. Post-copy follows.
    ///
    /// # Errors
    /// If the migration has no post-copy, or no pre-copy any more.
    pub fn switch(&self) -> Result<(), ControlRefused> {
        self.with(|state| {
            state.must_run()?;
            match state.step {
                Step::Switchover => return Err(ControlRefused::PrecopyEnded),
                Step::HandingOver => return Err(ControlRefused::HandingOver),
                Step::HandedOver => return Err(ControlRefused::InPostcopy),
                _ if state.mode == Mode::Postcopy => return Err(ControlRefused::NoPrecopy),
                _ if !state.may_postcopy => return Err(ControlRefused::NoPostcopy),
                _ => {}
            }
            state.switch = true;
            self.0.switch.store(true, Ordering::Release);
            Ok(())
        })
    }

    /// Cancels the migration: the guest continues at the source.
    ///
    /// # Errors
    /// If the guest has been handed over, or may have been.
    pub fn cancel(&self) -> Result<(), ControlRefused> {
        self.with(|state| {
            state.must_run()?;
            match state.step {
                Step::HandingOver => return Err(ControlRefused::HandingOver),
                Step::HandedOver => return Err(ControlRefused::HandedOver),
                _ => {}
            }
            state.cancelled = true;
            state.cancel.cancel();
            Ok(())
        })
    }

    /// A migration with these options begins, or is resumed at this stage. `cancel` is its flag.
    pub(crate) fn begin(&self, options: &SourceOptions, stage: SourceStage, cancel: &CancelFlag) {
        self.0.bandwidth.set(options.bandwidth);
        self.with(|state| {
            state.step = Step::Precopy;
            state.mode = options.mode;
            state.may_postcopy = options.may_postcopy();
            // Of a migration that is resumed it is not known which way it has gone.
            state.postcopy = options.may_postcopy();
            state.max_downtime = options.max_downtime;
            state.cancel = cancel.clone();
        });
        self.follow(stage);
    }

    /// The limit for all background links.
    pub(crate) fn bandwidth(&self) -> &Bandwidth {
        &self.0.bandwidth
    }

    /// The present limit of the downtime.
    pub(crate) fn max_downtime(&self) -> Duration {
        self.with(|state| state.max_downtime)
    }

    /// Whether pre-copy was asked to end: threads do not begin another range.
    pub(crate) fn ends_precopy(&self) -> bool {
        self.0.switch.load(Ordering::Acquire)
    }

    /// At the end of a round: whether pre-copy ends with it, and how. `has_converged` decides for
    /// the present limit of the downtime, and `gives_up` says whether post-copy follows in any
    /// case.
    pub(crate) fn end_precopy(
        &self,
        gives_up: bool,
        has_converged: impl FnOnce(Duration) -> bool,
    ) -> Option<PrecopyResult> {
        self.with(|state| {
            let result = if state.switch {
                PrecopyResult::StartPostcopy
            } else if has_converged(state.max_downtime) {
                PrecopyResult::Converged
            } else if gives_up {
                PrecopyResult::StartPostcopy
            } else {
                return None;
            };
            state.step = Step::Switchover;
            state.postcopy = result == PrecopyResult::StartPostcopy;
            Some(result)
        })
    }

    /// The switchover of a migration without pre-copy begins.
    pub(crate) fn skip_precopy(&self) {
        self.with(|state| {
            state.step = Step::Switchover;
            state.postcopy = true;
        });
    }

    /// The last moment in which the migration can be cancelled.
    ///
    /// # Errors
    /// If it was.
    pub(crate) fn hand_over(&self) -> Result<(), SourceFailure> {
        self.with(|state| {
            if state.cancelled || state.cancel.is_cancelled() {
                return Err(SourceFailure::Cancelled);
            }
            state.step = Step::HandingOver;
            Ok(())
        })
    }

    /// The source has recorded this stage.
    pub(crate) fn follow(&self, stage: SourceStage) {
        let step = match stage {
            SourceStage::Owned => return,
            SourceStage::Committed => Step::HandingOver,
            SourceStage::HandedOver => Step::HandedOver,
            SourceStage::Done => Step::Ended,
        };
        self.with(|state| state.step = step);
    }

    /// The migration has ended.
    pub(crate) fn end(&self) {
        self.with(|state| state.step = Step::Ended);
    }

    fn with<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        change(&mut self.0.state.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl State {
    fn must_run(&self) -> Result<(), ControlRefused> {
        match self.step {
            Step::NotBegun => Err(ControlRefused::NotBegun),
            Step::Ended => Err(ControlRefused::Ended),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
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
        (control, cancel)
    }

    fn of(mode: Mode) -> SourceControl {
        begun(mode, WhenStalled::GoOn).0
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
    fn a_migration_is_cancelled_until_the_guest_is_handed_over() {
        let (control, cancel) = begun(Mode::Hybrid, WhenStalled::GoOn);
        control.cancel().unwrap();
        assert!(cancel.is_cancelled());
        assert!(matches!(control.hand_over(), Err(SourceFailure::Cancelled)));
        let (control, cancel) = begun(Mode::Hybrid, WhenStalled::GoOn);
        control.hand_over().unwrap();
        assert_eq!(control.cancel(), Err(ControlRefused::HandingOver));
        control.follow(SourceStage::HandedOver);
        assert_eq!(control.cancel(), Err(ControlRefused::HandedOver));
        control.end();
        assert_eq!(control.cancel(), Err(ControlRefused::Ended));
        assert!(!cancel.is_cancelled());
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
}

#[cfg(test)]
#[cfg(loom)]
mod models {
    use super::*;
    use loom::thread;

    fn begun(mode: Mode) -> (SourceControl, CancelFlag) {
        let options = SourceOptions {
            mode,
            ..SourceOptions::default()
        };
        let (control, cancel) = (SourceControl::new(), CancelFlag::new());
        control.begin(&options, SourceStage::Owned, &cancel);
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
}
