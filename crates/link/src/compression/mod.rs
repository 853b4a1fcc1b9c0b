//! Compression of background pages.
//!
//! Each background link compresses in its own thread, with contexts and buffers of its own
//! (`compressor.rs`), what the destination decompresses (`decompressor.rs`). The content of a frame
//! is one unit: pages that do not become smaller travel as they are. `choice.rs` decides whether a
//! link compresses, and how, if that is left to it: a state machine without I/O or clock, fed with
//! what `measured_link.rs` measures. Urgent pages are never compressed.

mod choice;
mod compressor;
mod counters;
mod decompressor;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
mod measured_link;

pub use compressor::Compressor;
pub use counters::{CompressionCounters, MethodCounters};
pub use decompressor::{DecompressError, Decompressor};
pub(crate) use measured_link::MeasuredLink;

use hikkoshi_wire::CompressionMethod;

/// Whether background pages are compressed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Compression {
    /// Never.
    Off,
    /// While the line is what limits, by the method with which the pages arrive soonest.
    #[default]
    Auto,
    /// Always, by this method, where that makes them smaller.
    Always(CompressionMethod),
}
