//! Who may run the guest: the two sides' state machines, without any I/O.
//!
//! A guest has one **keeper**: the side that may let it run. Both machines
//! here are fed with what happens ([`SourceEvent`], [`DestinationEvent`]) and
//! answer with what to do ([`SourceAction`], [`DestinationAction`]), in order.
//! Each has a **stage** that is recorded where it outlives the engine, before
//! anything that depends on it is done; so an engine that was killed goes on
//! from its recorded stage, and everything else it knew is worked out anew.
//!
//! The hand-over is a commit in two steps, with the destination as the one who
//! decides once *commit* may be on its way:
//!
//! - Up to *commit* the source keeps the guest: whatever fails, it lets it run
//!   on, and the destination never runs it.
//! - From then on the source lets it run again only when the destination has
//!   recorded, and says, that it has **declined**: that it never ran the guest
//!   and never will.
//! - A destination that has said *ready* and hears nothing more neither runs
//!   the guest nor forgets it. The next connection settles it.
//!
//! `docs/protocol.md` has both machines as tables, which are compared with
//! this code by a test; a model check (`tests/machines/`) explores every
//! order of messages, losses and crashes.

mod destination;
mod outcome;
mod record;
mod recorded;
mod source;
mod wire;

pub use destination::{Destination, DestinationAction, DestinationEvent, DestinationStage};
pub use outcome::Outcome;
pub use record::{DestinationRecord, Journal, SourceRecord, Unrecorded};
pub use recorded::{Recorded, RecordedDestination, RecordedSource, StateMachine};
pub use source::{Source, SourceAction, SourceEvent, SourceStage};
