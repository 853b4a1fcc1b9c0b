//! A guest's memory: reading, writing and dropping pages, and which pages are present.
//!
//! # Model
//!
//! Guest memory is a flat space of 4 KiB pages ([`RamLayout`](hikkoshi_pages::RamLayout)). Each RAM
//! block has a [`Backing`]: a file that QEMU maps shared ([`RamFile`]), or private memory of QEMU's
//! process ([`PrivateMemory`]), anonymous or a private mapping of a file.
//!
//! Private memory ends with its process. A process that exits gives its memory up some time before
//! it counts as ended. So whatever the pagemap reports as absent is used only if the process
//! has its memory afterwards; otherwise the result is [`MemoryLost`], never a page of zeros.
//!
//! * The source reads pages with [`GuestRam`] and splits them into content and zero pages with
//!   [`PageReader`]. Reading fills no holes.
//! * The destination fills and drops pages with [`RamWriter`] before the guest runs there; absent
//!   pages in the guest's process, by userfaultfd if it has one
//!   ([`install_absent`](RamWriter::install_absent)), so that they are charged to that process's
//!   memory cgroup. Without post-copy, a file that has all of its pages already (`prealloc=on`)
//!   keeps them.
//!   Afterwards pages are installed by userfaultfd only, and [`missing_pages`] reports which ones
//!   are absent.
//!
//! # Vocabulary
//!
//! * *hole*: what reads as zeros and takes no memory: a hole of a file, or private memory that its
//!   process has never touched. A page that is swapped out is not a hole.
//!
//! # What is missing
//!
//! * A hugetlb page that the kernel is moving at that moment looks like a hole of private memory
//!   that is write-protected (the pagemap does not tell them apart). The kernel moves hugetlb pages
//!   when memory is taken offline, not by itself.

mod backing;
mod compare;
mod content_map;
mod content_sample;
mod dropping;
mod error;
mod guest_ram;
mod page_installer;
mod page_reader;
mod populated;
mod presence;
mod private_memory;
mod process_memory;
mod ram_file;
mod writer;

pub use backing::Backing;
pub use compare::Content;
pub use content_map::{ContentMap, ContentPages};
pub use content_sample::{ContentSample, sample_content};
pub use error::{MemoryError, MemoryLost};
pub use guest_ram::GuestRam;
pub use page_installer::PageInstallerError;
pub use page_reader::{PageReader, PageRun};
pub use presence::{PresenceError, missing_pages};
pub use private_memory::PrivateMemory;
pub use process_memory::ProcessMemory;
pub use ram_file::RamFile;
pub use writer::RamWriter;
