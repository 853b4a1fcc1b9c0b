//! A guest's second-stage tables: its views, and what all operations share.

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

/// Host memory of a guest's reverse map, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct ReverseMapBytes {
    /// For the first mapping of each guest frame and superpage, with the directory.
    pub first: u64,
    /// For the chains of frames and superpages that are mapped more than once.
    pub chains: u64,
}

impl ReverseMapBytes {
    /// All of it.
    pub const fn total(self) -> u64 {
        self.first + self.chains
    }
}

/// Why a guest or a view was not created.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum CreateError {
    /// The guest's size.
    #[error("creating a guest of {0} pages: four levels of tables translate 1 to {MAX_PAGES}")]
    Size(u64),
    /// Memory.
    #[error("creating a guest or a view: no memory left for its tables and logs; free some frames")]
    NoMemory,
    /// Views.
    #[error("creating a view: the guest has {MAX_VIEWS} already; remove one")]
    TooManyViews,
}

/// A guest's second-stage tables, reverse map and dirty log.
///
/// All operations take `&self`; any number of threads and virtual processors may use them at once. See
/// the crate's documentation for what an operation may wait for.
pub struct Guest<M: HostMemory> {
    pub(crate) memory: M,
    pub(crate) pages: u64,
    pub(crate) capabilities: Capabilities,
    /// The views' root tables, and whether they are nested; zero: no such view.
    pub(crate) views: Box<[AtomicU64]>,
    /// Beside the roots of nested views.
    pub(crate) gfn_tables: Box<[AtomicU64]>,
    /// Tables whose split was given up, linked as dead tables are, for the next discharge to free.
    pub(crate) abandoned: AtomicU64,
    pub(crate) rcu: Rcu,
    pub(crate) merge_seq: MergeSeqCount,
    pub(crate) rmap: Rmap,
    pub(crate) log: Log,
}

impl<M: HostMemory> Guest<M> {
    /// A guest with `pages` guest frames, room for `processors` virtual processors, and nothing mapped.
    ///
    /// # Errors
    ///
    /// [`CreateError::Size`] for no page or more than 2^36, [`CreateError::NoMemory`].
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

    /// All guest frames.
    pub fn all(&self) -> GfnRange {
        GfnRange::from_len(Gfn::new(0), self.pages)
    }

    /// Tells this guest from others that live.
    pub(crate) fn id(&self) -> usize {
        self.views.as_ptr().addr()
    }

    /// Nothing to forget, yet.
    pub(crate) fn empty_flush(&self) -> TlbFlush {
        TlbFlush::for_guest(self.id())
    }

    /// The host memory that the guest was created with.
    pub fn memory(&self) -> &M {
        &self.memory
    }

    /// What the guest was told that the processors offer.
    pub const fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    /// Bytes of host memory in use for the reverse map: for the first mapping of each guest frame
    /// (at most 0.2 % of the guest's memory), and for the chains of those mapped more than once (16 bytes
    /// for each further mapping, and a 256th of that; kept for later chains when mappings go).
    pub fn reverse_map_bytes(&self) -> ReverseMapBytes {
        ReverseMapBytes {
            first: self.rmap.frames() * FRAME_BYTES + self.rmap.directory_bytes(),
            chains: self.rmap.chain_frames() * FRAME_BYTES,
        }
    }

    /// A table, with the frame beside it that a nested view needs.
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

    /// Frees a table that nobody sees.
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

/// Gives all frames back, without disturbing a processor: the guest cannot know where it ran.
///
/// **Before** a guest is dropped, no virtual processor of it may be in the guest, or enter it again, and each
/// logical processor that ran one has to forget what it remembers of the guest's views (`INVEPT`, all
/// contexts, or one for each view's [`Guest::eptp`]), or must do so before it enters *any* guest again.
/// Otherwise the tables' frames are used for something else while a processor still walks them, and another
/// guest whose root comes to lie in the same frame runs on this one's translations. Obligations that were not
/// met by then ([`TlbFlush`]) leak the tables that they hold.
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
