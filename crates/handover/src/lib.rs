//! Who may run the guest: a state machine for each side, without I/O, and its record.
//!
//! # Model
//!
//! At any time, exactly one side owns the guest: the side that may run it. The
//! driver of a side (in `hikkoshi-engine`) feeds its machine with **events**
//! ([`SourceEvent`], [`DestinationEvent`]): a message, a lost link, a failure, a
//! request of the operator. The machine returns **actions** ([`SourceAction`],
//! [`DestinationAction`]), which the driver performs in order.
//!
//! Each machine has a **stage** ([`SourceStage`], [`DestinationStage`]). The
//! stage is part of a **record** ([`SourceRecord`], [`DestinationRecord`]) that a
//! [`Journal`] stores before anything that depends on the new stage is done.
//! After an engine is killed, another one continues from the record. All other
//! state is determined again. [`RecordedHandover`] is a machine together with its record.
//!
//! # The handover
//!
//! The handover is a two-phase commit:
//!
//! - Until the source has sent *Commit*, it owns the guest. If anything fails, it
//!   resumes the guest, and the destination never runs it.
//! - After *Commit* may have been sent, the destination decides. The source
//!   resumes the guest only if the destination has recorded and reported that it
//!   **declined**: it never ran the guest and never will.
//! - A destination that has sent *Ready* and receives nothing more does not run
//!   the guest and does not drop it. The next connection decides.
//!
//! # Checks
//!
//! `docs/protocol.md` has both machines as tables; a test compares them with
//! this code. A model check (`tests/machines/`) explores every order of
//! messages, losses and crashes within a budget of faults.

mod destination;
mod outcome;
mod record;
mod recorded_handover;
mod source;
mod stage;
mod stored;
mod wire;

pub use destination::{Destination, DestinationAction, DestinationEvent};
pub use outcome::Outcome;
pub use record::{DestinationRecord, History, Journal, SourceRecord, Unrecorded};
pub use recorded_handover::{RecordedDestination, RecordedHandover, RecordedSource, StateMachine};
pub use source::{Source, SourceAction, SourceEvent};
pub use stage::{DestinationStage, SourceStage};
