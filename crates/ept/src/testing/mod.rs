//! A processor in software, to run the tables on: the walk, the flags, the log and the caches of the
//! SDM, without the silicon. For tests, here and in the hypervisors that use this crate.
//!
//! [`Cpu`] is strictly what the SDM lets a processor do, and where it leaves a choice, the choice that
//! is hardest for software: it remembers every translation, with its dirty flag, and every way to a
//! page table, until it is told to forget; it exits on what it remembers even if the tables allow more
//! by now. [`TestMemory`] is host memory whose freed frames are poisoned: a processor that still walks there
//! finds a misconfiguration, and a thread that does panics.

mod cpu;
mod machine;
mod memory;

pub use cpu::{Access, Counts, Cpu, Exit};
pub use machine::{AccessError, Machine};
pub use memory::TestMemory;
