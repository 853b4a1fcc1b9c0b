//! Whether a guest can run at the destination.

mod cpuid_names;
mod guest;
mod processors;

pub use guest::{Mismatch, Names};
pub use processors::ProcessorDifferences;
