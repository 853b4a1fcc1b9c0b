//! Predicts a migration in each mode: whether it converges, its rounds, downtime, duration and
//! bytes, and how much the guest is slowed down. The computation behind `hikkoshi estimate`; it
//! does no I/O.
//!
//! # Model
//!
//! The inputs are what was measured: how many different pages the guest writes in a time
//! ([`WorkingSet`]), how many of its pages have content ([`Guest`]), and the line ([`Line`]). The
//! engine is simulated with them, round by round and then fault by fault:
//!
//! * `precopy.rs`: the rounds. They end by the engine's own rule
//!   ([`Convergence`](hikkoshi_engine::Convergence)).
//! * `postcopy.rs`: background pages and page faults, which compete for the processors and the
//!   line.
//! * `switchover.rs`: what the pause consists of.
//! * `costs.rs`: what cannot be measured without moving the guest: constants, each with its source.
//!
//! # Confidence
//!
//! Each number is a [`Span`]: low, likely, high. The simulation runs three times: with the likely
//! value of each input, with all values at the end that makes a migration easy, and with all at the
//! other end. So the ends are further apart than a confidence interval would be in which the errors
//! were independent, and no probability is claimed for them.
//!
//! # What is missing
//!
//! * Only writes are known, not reads. In post-copy, a read of a missing page is a fault, too.
//! * The order of addresses: the guest's writes are taken to be spread over its memory.
//! * What other guests do on the hosts and on the line after the measurement.
//! * Huge host pages, whose faults take longer.

mod choose_mode;
mod compression;
mod costs;
mod float;
mod inputs;
mod line;
mod postcopy;
mod precopy;
mod predict;
mod span;
mod switchover;
mod working_set;

pub use choose_mode::{Choice, choose_mode};
pub use compression::choose_compression;
pub use inputs::{CompressedPages, Guest, Line};
pub use predict::{Converges, Prediction, predict};
pub use span::Span;
pub use working_set::WorkingSet;
