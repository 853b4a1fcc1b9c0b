//! A guest's memory: reading, writing and dropping pages, and which pages are present.
//!
//! # Model
//!
//! Guest memory is a flat space of 4 KiB pages ([`RamLayout`](hikkoshi_pages::RamLayout)). Each RAM
//! block is a file ([`RamFile`]) that QEMU maps as well.
//!
//! * The source reads pages with [`GuestRam`] and splits them into content and zero pages with
//!   [`PieceReader`].
//! * The destination fills and drops pages with [`RamWriter`] before the guest runs there.
//!   Afterwards pages are installed by userfaultfd only, and [`missing_pages`] reports which ones
//!   are absent.
//!
//! # What is missing
//!
//! * Private memory of a process, which is not a file.

mod backing;
mod content;
mod guest_ram;
mod pieces;
mod presence;
mod process_memory;
mod ram_file;
mod writer;

pub use backing::Backing;
pub use content::Content;
pub use guest_ram::GuestRam;
pub use pieces::{Piece, PieceReader};
pub use presence::{PresenceError, missing_pages};
pub use process_memory::ProcessMemory;
pub use ram_file::RamFile;
pub use writer::{MemoryError, RamWriter};
