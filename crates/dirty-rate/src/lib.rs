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
//! for each 2 MiB of memory in which a page was written, 1,152 bytes for each: at most 576 MiB for
//! a guest of 1 TiB that writes to all of its memory.
//!
//! # Sampling
//!
//! The guest pays for the log: the first write to each page after a take is a page fault. If a take
//! of all memory costs too much ([`Options::max_cost`]), only a *sample* of the memory is taken, and
//! the results are extrapolated ([`Recorder::set_level`]). The sample stays the same, because a
//! window needs every interval of the pages that it counts. It only shrinks, if the guest begins to
//! write more. Memory that is not in the sample is not protected again, and costs nothing after the
//! first write to each page.
//!
//! # What is missing
//!
//! * The sample does not grow again when the guest becomes quiet.
//! * Memory that is written less than a sample shows (one small hot spot) is missed by it. The
//!   command says which part was measured.

mod estimate;
mod measure;
mod measurement;
mod ranges;
mod recency;
mod recorder;
mod sample;
mod tracked_block;
mod windows;

pub use measure::{FAULT_COST, Options, OptionsError, measure};
pub use measurement::{BlockRate, Cost, Measurement, PagesPerSecond, RangeRate, Rates, Window};
pub use recorder::Recorder;
pub use windows::{MAX_INTERVALS, window_lengths};
