//! Second-stage page tables that know what is dirty.
#![no_std]

extern crate alloc;

#[cfg(not(target_pointer_width = "64"))]
compile_error!("hikkoshi-ept needs a 64-bit host: addresses and frame numbers must fit a usize");

mod address;
mod atomic;
mod bits;
mod capability;
mod entry;
mod flush;
mod guest;
mod log;
mod map;
mod memory;
pub mod model;
mod processors;
mod protect;
mod rmap;
mod spin;
mod split;
mod unmap;
mod violation;
mod walkers;

pub use address::{ENTRIES, FRAME_BYTES, Frame, Gfn, GfnRange, INDEX_BITS, Level, MAX_PAGES};
pub use atomic::AtomicU64;
pub use capability::{Capabilities, Eptp};
pub use entry::{Entry, MemoryType, PageType, Permissions};
pub use flush::Flush;
pub use guest::{CreateError, Guest, MAX_VIEWS, View};
pub use log::{Form, PML_ENTRIES, PML_START, StartError, TakeError, Vcpu, VcpuError};
pub use map::{MapError, Mapping};
pub use memory::{FrameAllocator, FrameReach, Memory, Table};
pub use processors::Processors;
pub use protect::Lookup;
pub use split::{MergeError, SplitError};
pub use violation::{Qualification, Violation};
