//! A guest's second-stage tables: creation, common state, and release of all memory.

use alloc::boxed::Box;
use core::fmt;

use thiserror::Error;

use crate::address::{ENTRIES, FRAME_BYTES, Gfn, GfnRange, Level, MAX_PAGES};
use crate::atomic::{AtomicU64, Ordering};
use crate::bitmap::zeroed_words;
use crate::capabilities::Capabilities;
use crate::dirty_log::Log;
use crate::entry::Entry;
use crate::host_memory::HostMemory;
use crate::merge_seqcount::MergeSeqCount;
use crate::rcu::Rcu;
use crate::rmap::{NoMemory, Rmap};
use crate::tlb_flush::TlbFlush;
use crate::view::{MAX_VIEWS, View};
use crate::walk::Node;

/// Host memory that a guest's reverse map uses, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct ReverseMapBytes {
    /// For the first mapping of each guest frame and superpage, including the directory.
    pub first: u64,
    /// For the chains of frames and superpages that are mapped more than once.
    pub chains: u64,
}

impl ReverseMapBytes {
    /// Returns the sum.
    pub const fn total(self) -> u64 {
        self.first + self.chains
    }
}

/// Why a guest or a view was not created.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum CreateError {
    /// The size of the guest is not supported.
    #[error("cannot create a guest of {0} pages: four table levels translate 1 to {MAX_PAGES}")]
    Size(u64),
    /// There is not enough memory.
    #[error(
        "cannot create a guest or a view: not enough memory for its tables and logs; free some frames"
    )]
    NoMemory,
    /// The guest has the maximum number of views.
    #[error("cannot create a view: the guest already has {MAX_VIEWS}; remove one")]
    TooManyViews,
}

/// A guest's second-stage tables, reverse map and dirty log.
///
/// All operations take `&self`. Any number of threads and vCPUs can call them at the same time. The
/// crate's documentation says which operations wait, and for what.
pub struct Guest<M: HostMemory> {
    pub(crate) memory: M,
    pub(crate) pages: u64,
    pub(crate) capabilities: Capabilities,
    /// For each view, the address of its root table and its flags; zero if the view does not exist.
    pub(crate) views: Box<[AtomicU64]>,
    /// For each nested view, the address of its root's GFN table.
    pub(crate) gfn_tables: Box<[AtomicU64]>,
    /// Tables of failed splits, linked like detached tables. The next flush frees them.
    pub(crate) abandoned: AtomicU64,
    pub(crate) rcu: Rcu,
    pub(crate) merge_seq: MergeSeqCount,
    pub(crate) rmap: Rmap,
    pub(crate) log: Log,
}

impl<M: HostMemory> Guest<M> {
    /// Creates a guest with `pages` guest frames, space for `processors` vCPUs, and nothing mapped.
    ///
    /// # Errors
    ///
    /// [`CreateError::Size`] if `pages` is 0 or more than 2^36; [`CreateError::NoMemory`].
    pub fn new(
        memory: M,
        pages: u64,
        processors: usize,
        capabilities: Capabilities,
    ) -> Result<Self, CreateError> {
        if pages == 0 || pages > MAX_PAGES {
            return Err(CreateError::Size(pages));
        }
        let rmap = Rmap::new(pages).ok_or(CreateError::NoMemory)?;
        let log = Log::new(pages, processors).ok_or(CreateError::NoMemory)?;
        let words = || zeroed_words(MAX_VIEWS as u64).ok_or(CreateError::NoMemory);
        let (views, gfn_tables) = (words()?, words()?);
        let root = memory.allocate().ok_or(CreateError::NoMemory)?;
        views[0].store(root.address(), Ordering::Release);
        Ok(Self {
            memory,
            pages,
            capabilities,
            views,
            gfn_tables,
            abandoned: AtomicU64::new(0),
            rcu: Rcu::new(),
            merge_seq: MergeSeqCount::new(),
            rmap,
            log,
        })
    }

    /// Returns the range of all guest frames.
    pub fn all(&self) -> GfnRange {
        GfnRange::from_len(Gfn::new(0), self.pages)
    }

    /// Identifies this guest among the existing guests.
    pub(crate) fn id(&self) -> usize {
        self.views.as_ptr().addr()
    }

    /// Returns an empty flush for this guest.
    pub(crate) fn empty_flush(&self) -> TlbFlush {
        TlbFlush::for_guest(self.id())
    }

    /// Returns the host memory that the guest was created with.
    pub fn memory(&self) -> &M {
        &self.memory
    }

    /// Returns the processor features that the guest was created with.
    pub const fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    /// Returns the host memory that the reverse map uses, in bytes: for the first mapping of each
    /// guest frame (at most 0.2 % of the guest's memory), and for the chains of frames that are
    /// mapped more than once (16 bytes for each further mapping, plus 1/256 of that). The memory of
    /// chains is kept for reuse when mappings are removed.
    pub fn reverse_map_bytes(&self) -> ReverseMapBytes {
        ReverseMapBytes {
            first: self.rmap.frames() * FRAME_BYTES + self.rmap.directory_bytes(),
            chains: self.rmap.chain_frames() * FRAME_BYTES,
        }
    }

    /// Allocates a table and, for a nested view, its GFN table.
    pub(crate) fn new_table(&self, nested: bool) -> Result<Node, NoMemory> {
        let table = self.memory.allocate().ok_or(NoMemory)?;
        let mut gfn_table = None;
        if nested {
            gfn_table = self.memory.allocate();
            if gfn_table.is_none() {
                self.memory.release(table);
                return Err(NoMemory);
            }
        }
        Ok(Node { table, gfn_table })
    }

    /// Frees a table that no processor and no thread can access.
    pub(crate) fn free_node(&self, node: Node) {
        if let Some(gfn_table) = node.gfn_table {
            self.memory.release(gfn_table);
        }
        self.memory.release(node.table);
    }

    fn free_tree(&self, node: Node, level: Level) {
        if let Some(below) = level.below() {
            for index in 0..ENTRIES {
                let entry = Entry(node.slot(&self.memory, index).load(Ordering::Acquire));
                if entry.is_table(level)
                    && let Some(table) = node.below(&self.memory, index, entry)
                {
                    self.free_tree(table, below);
                }
            }
        }
        self.free_node(node);
    }
}

/// Releases all frames. Does not contact any processor: the guest does not know where its vCPUs
/// ran.
///
/// **Before** a guest is dropped, no vCPU may be in the guest or enter it again. Each logical
/// processor that ran a vCPU of it must invalidate the cached translations of the guest's views
/// (`INVEPT`: all-context, or single-context for each view's [`Guest::eptp`]), at the latest before
/// it enters *any* guest again. Otherwise a processor still walks frames that are reused for other
/// data, and another guest whose root is in the same frame runs on the translations of this one. A
/// [`TlbFlush`] that was not done by then leaks the tables it holds.
impl<M: HostMemory> Drop for Guest<M> {
    fn drop(&mut self) {
        for number in (0u8..).take(self.views.len()) {
            if let Some(root) = self.take_root(View::numbered(number)) {
                self.free_tree(root, Level::Root);
            }
        }
        self.free_abandoned(self.abandoned.swap(0, Ordering::AcqRel));
        self.rmap.release(&self.memory);
        self.log.release(&self.memory);
    }
}

impl<M: HostMemory> fmt::Debug for Guest<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guest")
            .field("pages", &self.pages)
            .field("capabilities", &self.capabilities)
            .field("log", &self.log)
            .finish_non_exhaustive()
    }
}
