//! Whether a guest can run at the destination: its memory and machine type, its
//! processors, its devices.

mod blocks;
mod guest;
mod machine;
mod processors;

pub use blocks::BlockDifferences;
pub use guest::{BlockNames, Mismatch};
pub use machine::MachineMismatch;
pub use processors::ProcessorDifferences;
