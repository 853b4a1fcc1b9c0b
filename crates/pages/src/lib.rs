//! The ground everything else stands on: which page, which pages, where they
//! lie, and who may send them.
//!
//! # Model
//!
//! A guest's memory is a list of **RAM blocks** ([`RamBlock`]): pieces of a
//! file that the VMM maps and the guest sees at one or more guest addresses.
//! A migration does not think in blocks. [`RamLayout`] puts them one after
//! another, in order, into one **flat page space**: [`Page`] 0 is the first
//! page of the first block, and the last page of the last block is number
//! `layout.pages() - 1`. Both ends of a migration build the same layout, so a
//! page number means the same page on both sides, on the wire and in every
//! bitmap.
//!
//! A page is always [`PAGE_SIZE`] = 4096 bytes here: that is the granule of
//! dirty logging, of requests and of sending. The kernel may map memory in
//! larger pieces (**host pages**: 4 KiB, 2 MiB or 1 GiB), and it matters in a
//! few places, which ask [`RamLayout::host_page_range`].
//!
//! # Claim
//!
//! [`PageBitmap`] holds one bit a page. In post-copy a set bit means "this page
//! is still owed", and whoever clears it wins the page and must send it:
//! [`PageBitmap::claim`]. There is exactly one winner, no lock, and the winner
//! sees everything that was done before the bit was set. Background senders
//! win whole runs at once with [`PageBitmap::claim_run`].
//!
//! # Pages that are not there
//!
//! Nothing here panics on a page or a range beyond the end: a bitmap holds no
//! set bit there, a layout answers `None` or clips. What arrives from a peer is
//! refused earlier and by name, in `hikkoshi-wire`.
//!
//! # What is missing
//!
//! - Base pages other than 4 KiB (arm64 hosts with 16 or 64 KiB pages).
//! - Memory that grows or shrinks while it moves (hot plug): a layout is fixed.
//! - 32-bit hosts: the crate does not build there, so that a number of pages
//!   or bytes always fits a `usize`.
//!
//! ```
//! use hikkoshi_pages::{Page, PageBitmap, PageRange};
//!
//! let owed = PageBitmap::full(1000);
//! // A page request arrives: its reader claims the page and sends it.
//! assert!(owed.claim(Page::new(500)));
//! assert!(!owed.claim(Page::new(500)), "nobody else will");
//! // A background sender takes the next run, and stops short of that page.
//! let from = PageRange::new(Page::new(490), Page::new(1000));
//! let won = owed.claim_run(from, 256).map(|run| (run.start().index(), run.len()));
//! assert_eq!(won, Some((490, 10)));
//! ```

#[cfg(not(target_pointer_width = "64"))]
compile_error!("hikkoshi needs a 64-bit host: page and byte numbers must fit a usize");

mod atomic;
mod bitmap;
mod layout;
mod page;
mod range;
mod runs;
mod zero_page;

pub use bitmap::PageBitmap;
pub use layout::{
    Extent, Extents, GuestRange, HOST_PAGE_SIZES, LayoutError, MAX_BLOCKS, MAX_GUEST_RANGES,
    MAX_ID_BYTES, MAX_PAGES, RamBlock, RamLayout,
};
pub use page::{PAGE_BYTES, PAGE_SIZE, Page, usize_from};
pub use range::{Chunks, PageRange, Pages};
pub use runs::Runs;
pub use zero_page::is_zero;
