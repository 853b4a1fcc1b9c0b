//! Plans how a host is emptied: which guest goes to which destination, in which order, how many at
//! once, and how long that takes. The computation behind `hikkoshi evacuate`; it does no I/O and
//! has no clock.
//!
//! # Model
//!
//! An [`Evacuation`] is what was found out: the [`Guest`]s as they were measured, the
//! [`Destination`]s as they have answered, the lines to them, and the limits. [`plan()`] makes a
//! [`Plan`] of it:
//!
//! * `admission.rs`: which destination may have which guest.
//! * `placement.rs`: who goes where. Guests with few destinations and much memory come first.
//! * `share.rs`: what each of the moves under way gets of the lines, by max-min fairness
//!   ([`Evacuation::shares`]). The command divides the bandwidth by the same function.
//! * `predictions.rs`: one move with such a share, by `hikkoshi-estimate`.
//! * `simulate.rs`: all moves. While some are under way, each advances by what it would take with
//!   its share; when one begins or ends, the shares change.
//! * `plan.rs`: a few orders and numbers of moves at once are simulated, and the one with the least
//!   [`cost`](Plan::cost) is taken: the time of the whole, and the sum of what the guests feel.
//! * `within.rs`: whether a plan meets a deadline, and which change would meet it.
//!
//! # Confidence
//!
//! Each number is a [`Span`](hikkoshi_estimate::Span). The plan is made with the likely values, and
//! simulated with the low and the high ones: all moves are fast, or all are slow.
//!
//! # What is missing
//!
//! * Disks that are copied take no time here.
//! * Processors limit a single move (`hikkoshi-estimate`), and several that prepare at once, but
//!   not several that send at once.
//! * A destination's line is used by this evacuation alone.

mod admission;
mod inputs;
mod placement;
mod plan;
mod predictions;
mod share;
mod simulate;
#[cfg(test)]
mod tests;
mod within;

pub use admission::{Obstacle, Refusal};
pub use inputs::{Destination, Evacuation, Guest, Limits, QEMU_MEMORY};
pub use plan::{Move, Order, Plan, Refused, plan, plan_as};
pub use within::{Change, Met, Within, within};
