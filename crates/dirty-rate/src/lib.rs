//! How fast a guest writes to its memory, and to how much of it: the measurement behind
//! `hikkoshi dirty-rate`.
//!
//! # Model
//!
//! A [`DirtyLog`](hikkoshi_dirty::DirtyLog) is taken at a fixed *interval*. Each take reports the
//! pages that were written since the take before. [`measure()`] does that, and a [`Recorder`]
//! computes the results; it does no I/O. Two numbers describe a guest:
//!
//! * The *rate*: the pages that one interval finds dirty, divided by its length. A page that is
//!   written many times in an interval counts once.
//! * The *working set* of a *window*: the number of different pages that are written in a number of
//!   adjacent intervals. It decides whether pre-copy converges: a round that takes 2 s leaves as
//!   many pages dirty as the working set of a window of 2 s.
//!
//! The recorder has one number a page: the last interval that found it dirty. From that follows the
//! working set of every window without a set for each interval (`recency.rs`). The numbers exist
//! for each 2 MiB of memory in which a page was written, 1,280 bytes for each: at most 640 MiB for
//! a guest of 1 TiB that writes to all of its memory, if all of it is measured.
//!
//! # Sampling
//!
//! The guest pays for the log: the first write to each page after a take is a page fault. So
//! [`measure()`] begins with a *sample* of the memory that is too small to exceed the limit
//! ([`Options::max_cost`]) whatever the guest does, and enlarges it as far as the cost allows, up
//! to all memory. The results are extrapolated from the sample ([`Recorder::set_level`]). During
//! the measurement it stays the same, because a window needs every interval of the pages that it
//! counts; it only shrinks, if the guest begins to write more. Memory that was never in the sample
//! is not protected, and costs nothing ([`PartialLog`]).
//!
//! # What is missing
//!
//! * The sample does not grow again when the guest becomes quiet.
//! * Memory that is written less than a sample shows (one small hot spot) is missed by it. The
//!   command says which part was measured.

mod estimate;
mod measure;
mod measurement;
mod partial_log;
mod ranges;
mod recency;
mod recorder;
mod sample;
mod tracked_block;
mod windows;

pub use measure::{FAULT_COST, KVM_FAULT_COST, MeasureError, Options, OptionsError, measure};
pub use measurement::{BlockRate, Cost, Measurement, PagesPerSecond, RangeRate, Rates, Window};
pub use partial_log::PartialLog;
pub use recorder::Recorder;
pub use windows::{MAX_INTERVALS, window_lengths};
