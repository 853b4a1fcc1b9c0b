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

use crate::source::convergence::PrecopyResult;
use crate::source::error::SourceFailure;
use crate::source::least_bandwidth::{self, BandwidthTooLow};
use crate::source::options::{SourceOptions, WhenStalled};
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
    /// With this limit it would take too long.
    #[error(transparent)]
    Bandwidth(#[from] BandwidthTooLow),
    /// The downtime matters to pre-copy only.
    #[error(
        "the mode is {0}: the guest is paused until the destination is ready, whatever the limit \
         of the downtime"
    )]
    NoDowntimeLimit(Mode),
    /// The source connects to the destination.
    #[error("the source is still connecting: pre-copy has not begun (try again when it has)")]
    Connecting,
    /// The disks are copied before the memory.
    #[error(
        "the disks are still being copied, and post-copy can follow only when they are in sync \
         (try again in pre-copy, or cancel the migration)"
    )]
    CopyingDisks,
    /// The migration was cancelled, and ends.
    #[error("the migration was cancelled, and the guest continues at the source")]
    Cancelled,
    /// Pre-copy was asked to end.
    #[error(
        "pre-copy was asked to end, and post-copy follows: the guest is paused until the \
         destination is ready, whatever the limit of the downtime"
    )]
    Switched,
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
    /// What `State::switch` says, for the threads that send pages.
    switch: AtomicBool,
    state: Mutex<State>,
}

/// How far the migration is, as far as that decides what can be changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Step {
    NotBegun,
    /// Before the destination has accepted the guest.
    Connecting,
    /// The guest's disks are copied.
    CopyingDisks,
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
    when_stalled: WhenStalled,
    max_rounds: u32,
    switch: bool,
    cancelled: bool,
    cancel: CancelFlag,
    /// About how many bytes the migration has to send; 0: not known.
    content: u64,
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
                when_stalled: options.when_stalled,
                max_rounds: options.max_rounds,
                switch: false,
                cancelled: false,
                cancel: CancelFlag::new(),
                content: 0,
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

    /// What follows if pre-copy does not converge, and after how many rounds.
    pub fn when_stalled(&self) -> (WhenStalled, u32) {
        self.with(|state| (state.when_stalled, state.max_rounds))
    }

    /// Changes limits: all that are given, or none. Returns those before.
    ///
    /// The bandwidth changes at once. The downtime is used at the end of the present round.
    ///
    /// # Errors
    /// If one of them would have no effect, or the bandwidth is too low for the guest.
    pub fn change(&self, change: LimitChange) -> Result<MigrationLimits, ControlRefused> {
        self.with(|state| {
            state.must_continue()?;
            let sends_nothing = state.step >= Step::HandingOver && !state.postcopy;
            if change.bandwidth.is_some() && sends_nothing {
                return Err(ControlRefused::AllSent);
            }
            least_bandwidth::check(state.content, change.bandwidth.flatten())?;
            if change.max_downtime.is_some() {
                let ended = state.step > Step::Precopy;
                match state.mode {
                    Mode::Precopy if ended => return Err(ControlRefused::PrecopyEnded),
                    Mode::Precopy if state.switch => return Err(ControlRefused::Switched),
                    Mode::Precopy => {}
                    mode => return Err(ControlRefused::NoDowntimeLimit(mode)),
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
    /// If the migration has no post-copy, or no pre-copy any more or not yet.
    pub fn switch(&self) -> Result<(), ControlRefused> {
        self.with(|state| {
            state.must_continue()?;
            match state.step {
                Step::Switchover => return Err(ControlRefused::PrecopyEnded),
                Step::HandingOver => return Err(ControlRefused::HandingOver),
                Step::HandedOver => return Err(ControlRefused::InPostcopy),
                _ if state.mode == Mode::Postcopy => return Err(ControlRefused::NoPrecopy),
                _ if !state.may_postcopy => return Err(ControlRefused::NoPostcopy),
                Step::Connecting => return Err(ControlRefused::Connecting),
                Step::CopyingDisks => return Err(ControlRefused::CopyingDisks),
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
            state.step = Step::Connecting;
            state.mode = options.mode;
            state.may_postcopy = options.may_postcopy();
            // Of a migration that is resumed it is not known which way it has gone.
            state.postcopy = options.may_postcopy();
            state.max_downtime = options.max_downtime;
            (state.when_stalled, state.max_rounds) = (options.when_stalled, options.max_rounds);
            state.cancel = cancel.clone();
        });
        self.follow(stage);
    }

    /// The migration has to send about so many bytes.
    ///
    /// # Errors
    /// If the limit of the bandwidth is too low for that.
    pub(crate) fn set_content(&self, bytes: u64) -> Result<(), BandwidthTooLow> {
        self.with(|state| {
            state.content = bytes;
            least_bandwidth::check(bytes, self.0.bandwidth.get())
        })
    }

    /// The guest's disks are copied from now on.
    pub(crate) fn copy_disks(&self) {
        self.with(|state| state.step = Step::CopyingDisks);
    }

    /// Pre-copy begins.
    pub(crate) fn begin_precopy(&self) {
        self.with(|state| state.step = Step::Precopy);
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

    /// The migration runs and was not cancelled: by this control, or by a signal while that has an
    /// effect.
    fn must_continue(&self) -> Result<(), ControlRefused> {
        self.must_run()?;
        let by_signal = self.step < Step::HandingOver && self.cancel.is_cancelled();
        match self.cancelled || by_signal {
            true => Err(ControlRefused::Cancelled),
            false => Ok(()),
        }
    }
}

#[cfg(test)]
#[cfg(loom)]
mod loom_models;
#[cfg(test)]
#[cfg(not(loom))]
mod tests;
