//! Page numbers, page ranges, the layout of a guest's RAM, and the atomic bitmap with which threads
//! claim pages. Most other crates use this one.
//!
//! # Model
//!
//! A guest's memory is a list of **RAM blocks** ([`RamBlock`]): regions of memory that the VMM maps
//! and that are visible at one or more guest addresses. A migration does not work with blocks.
//! [`RamLayout`] concatenates them, in order, into one **flat page space**: [`Page`] 0 is the first
//! page of the first block, and the last page of the last block is number `layout.pages() - 1`.
//! Both sides of a migration create the same layout, so a page number means the same page on both
//! sides, on the wire and in every bitmap.
//!
//! A page always has [`PAGE_SIZE`] = 4096 bytes: this is the granularity of dirty logging, of page
//! requests and of sending. The kernel may map memory in larger pages (**host pages**: 4 KiB, 2 MiB
//! or 1 GiB). The few places where this matters use [`RamLayout::host_page_range`].
//!
//! # Claim
//!
//! [`PageBitmap`] has one bit for each page. In post-copy a set bit means "not sent yet". The
//! thread that clears the bit wins the page and must send it: [`PageBitmap::claim`]. There is
//! exactly one winner, no lock, and the winner sees everything that was done before the bit was
//! set. Background senders claim whole runs with [`PageBitmap::claim_run`].
//!
//! # Pages beyond the end
//!
//! No call panics on a page or a range beyond the end: a bitmap has no set bit there, and a layout
//! returns `None` or clips the range. Input from a peer is validated earlier, with specific errors,
//! in `hikkoshi-wire`.
//!
//! # What is missing
//!
//! - Base pages of other sizes than 4 KiB (arm64 hosts with 16 or 64 KiB pages) are not supported.
//! - A layout is fixed: memory cannot grow or shrink during a migration (hot plug).
//! - The crate does not build for 32-bit hosts, so that a number of pages or bytes always fits a
//!   `usize`.
//!
//! ```
//! use hikkoshi_pages::{Page, PageBitmap, PageRange};
//!
//! let unsent = PageBitmap::full(1000);
//! // A page request arrives: the thread that reads it claims the page and sends it.
//! assert!(unsent.claim(Page::new(500)));
//! assert!(!unsent.claim(Page::new(500)), "no second winner");
//! // A background sender claims the next run, which ends before that page.
//! let from = PageRange::new(Page::new(490), Page::new(1000));
//! let won = unsent.claim_run(from, 256).map(|run| (run.start().index(), run.len()));
//! assert_eq!(won, Some((490, 10)));
//! ```

#[cfg(not(target_pointer_width = "64"))]
compile_error!("hikkoshi requires a 64-bit host: page and byte numbers must fit a usize");

mod atomic;
mod bitmap;
mod layout;
mod page;
mod range;
mod runs;
mod words;
mod zero_page;

pub use bitmap::PageBitmap;
pub use layout::{
    Extent, Extents, GuestRange, HOST_PAGE_SIZES, LayoutError, MAX_BLOCKS, MAX_GUEST_RANGES,
    MAX_ID_BYTES, MAX_PAGES, RamBlock, RamLayout,
};
pub use page::{PAGE_BYTES, PAGE_SIZE, Page, usize_from};
pub use range::{Chunks, PageIter, PageRange};
pub use runs::Runs;
pub use zero_page::is_zero;
