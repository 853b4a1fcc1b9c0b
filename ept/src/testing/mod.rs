//! A software processor to test tables with: the SDM's walk, flags, page-modification log and
//! caches. For the tests of this crate and of hypervisors that use it.
//!
//! [`Cpu`] does only what the SDM permits a processor to do. If the SDM leaves a choice, it makes
//! the choice that is hardest for software: it caches every translation, with its dirty flag, and
//! every path to a page table, until they are invalidated. It exits on a cached translation even if
//! the tables permit more by now. [`TestMemory`] is host memory that poisons freed frames: a
//! processor that still walks them finds a misconfiguration, and the allocator panics if a thread
//! wrote to one.

mod cpu;
mod machine;
mod memory;

pub use cpu::{Access, Counts, Cpu, Exit};
pub use machine::{AccessError, Machine};
pub use memory::TestMemory;
