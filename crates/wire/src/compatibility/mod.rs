//! Whether a guest can run at the destination.

mod guest;
mod machine;
mod processors;

pub use guest::{Mismatch, Names};
pub use machine::MachineMismatch;
pub use processors::ProcessorDifferences;
