//! A guest's second-stage tables: its views, and what all operations share.

use alloc::boxed::Box;
use core::fmt;

use thiserror::Error;

use crate::address::{ENTRIES, FRAME_BYTES, Frame, Gfn, GfnRange, Level, MAX_PAGES, usize_from};
use crate::atomic::{AtomicU64, Ordering};
use crate::bitmap::{ones, zeroed_words};
use crate::capabilities::{Capabilities, Eptp};
use crate::dirty_log::Log;
use crate::entry::Entry;
use crate::host_memory::HostMemory;
use crate::merge_seqcount::MergeSeqCount;
use crate::rcu::Rcu;
use crate::rmap::{NoMemory, Rmap};
use crate::tlb_flush::TlbFlush;
use crate::walk::Node;

/// Views a guest can have, [`View::MAIN`] included.
pub const MAX_VIEWS: usize = if cfg!(loom) { 2 } else { 64 };

/// In a view's word: its addresses are not guest frame numbers.
const NESTED: u64 = 1;
/// A view's word while the view is being made.
const CLAIMED: u64 = 2;
/// In the word of a view that was removed, as long as processors may remember translations of its root.
const REMOVED: u64 = 4;

/// One set of tables of a guest: one root.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct View(u8);

impl View {
    /// The view that every guest has.
    pub const MAIN: Self = Self(0);

    /// The view's number, below [`MAX_VIEWS`].
    pub const fn number(self) -> u8 {
        self.0
    }

    pub(crate) const fn numbered(number: u8) -> Self {
        Self(number)
    }

    pub(crate) const fn bit(self) -> u64 {
        1 << self.0
    }
}

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
    views: Box<[AtomicU64]>,
    /// Beside the roots of nested views.
    gfn_tables: Box<[AtomicU64]>,
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

    /// [`Guest::eptp`] of [`View::MAIN`], which always is there.
    pub fn main_eptp(&self) -> Eptp {
        let root = Frame::containing(self.views[0].load(Ordering::Acquire));
        Eptp::new(root, self.capabilities.accessed_dirty)
    }

    /// Adds a view whose addresses are guest frame numbers, as those of [`View::MAIN`] are: another set
    /// of permissions over the same guest.
    ///
    /// # Errors
    ///
    /// [`CreateError::TooManyViews`], [`CreateError::NoMemory`].
    pub fn add_view(&self) -> Result<View, CreateError> {
        self.add(0)
    }

    /// Adds a view with addresses of its own: the second stage of a guest's guest. Its leaves map this
    /// guest's frames anywhere.
    ///
    /// # Errors
    ///
    /// [`CreateError::TooManyViews`], [`CreateError::NoMemory`].
    pub fn add_nested_view(&self) -> Result<View, CreateError> {
        self.add(NESTED)
    }

    fn add(&self, kind: u64) -> Result<View, CreateError> {
        let root = self
            .new_table(kind == NESTED)
            .map_err(|_| CreateError::NoMemory)?;
        for (number, word) in (0u8..).zip(&*self.views) {
            let claimed = word.compare_exchange(0, CLAIMED, Ordering::AcqRel, Ordering::Relaxed);
            if claimed.is_ok() {
                let gfn_table = root.gfn_table.map_or(0, Frame::address);
                self.gfn_tables[usize::from(number)].store(gfn_table, Ordering::Release);
                word.store(root.table.address() | kind, Ordering::Release);
                return Ok(View(number));
            }
        }
        self.free_node(root);
        Err(CreateError::TooManyViews)
    }

    /// Removes a view and everything mapped there. No virtual processor may enter with it any more.
    /// [`View::MAIN`] stays (only its mappings go).
    ///
    /// The view's number, and the frame of its root, are used for others once the obligation is met, and
    /// not before: what processors remember is tagged with the root's address.
    pub fn remove_view(&self, view: View) -> TlbFlush {
        let mut flush = self.unmap(view, GfnRange::TRANSLATED);
        if view != View::MAIN {
            let _guard = self.rcu.read();
            if let Some(root) = self.take_root(view) {
                flush.add_removed_views(view.bit());
                // Whoever is still in the view finds dead entries, and then no view.
                self.detach_tree(&mut flush, view, root);
            }
        }
        flush
    }

    /// The word to put into the VMCS of a virtual processor that runs in `view`; `None` if there is no
    /// such view.
    pub fn eptp(&self, view: View) -> Option<Eptp> {
        let root = self.root(view)?.table;
        Some(Eptp::new(root, self.capabilities.accessed_dirty))
    }

    /// The EPT pointers of the views that `flush` concerns, those included that it removes: what `INVEPT`
    /// takes in [`Processors::invalidate`](crate::Processors::invalidate).
    pub fn eptps(&self, flush: &TlbFlush) -> impl Iterator<Item = Eptp> {
        let concerned = ones(flush.views()).filter_map(|number| self.views.get(usize_from(number)));
        concerned.filter_map(|word| {
            let value = word.load(Ordering::Acquire);
            let root = Frame::containing(value);
            (value > CLAIMED).then(|| Eptp::new(root, self.capabilities.accessed_dirty))
        })
    }

    pub(crate) fn root(&self, view: View) -> Option<Node> {
        let number = usize::from(view.0);
        let word = self.views.get(number)?;
        loop {
            let value = word.load(Ordering::Acquire);
            if value & REMOVED != 0 {
                return None;
            }
            if value & NESTED == 0 {
                let gfn_table = None;
                let table = Frame::containing(value);
                return (value > CLAIMED).then_some(Node { table, gfn_table });
            }
            let gfn_table = self.gfn_tables[number].load(Ordering::Acquire);
            // Another view may have got the number: the root before and after is the same one.
            if word.load(Ordering::Acquire) == value {
                let gfn_table = Some(Frame::containing(gfn_table));
                let table = Frame::containing(value);
                return Some(Node { table, gfn_table });
            }
        }
    }

    /// Takes a view away; the caller is the one who gets its root. The caller is inside.
    fn take_root(&self, view: View) -> Option<Node> {
        let word = self.views.get(usize::from(view.0))?;
        loop {
            let value = word.load(Ordering::Acquire);
            let root = self.root(view)?;
            if root.table == Frame::containing(value)
                && word
                    .compare_exchange(value, value | REMOVED, Ordering::AcqRel, Ordering::Relaxed)
                    .is_ok()
            {
                return Some(root);
            }
        }
    }

    /// Gives the numbers of removed views back. No processor remembers anything of their roots.
    pub(crate) fn free_views(&self, removed: u64) {
        for (number, word) in (0u8..).zip(&*self.views) {
            if removed & View(number).bit() != 0 {
                word.store(0, Ordering::Release);
            }
        }
    }

    pub(crate) fn is_nested(&self, view: View) -> bool {
        let word = self.views.get(usize::from(view.0));
        word.is_some_and(|word| word.load(Ordering::Acquire) & (NESTED | REMOVED) == NESTED)
    }

    /// The views whose addresses are guest frame numbers, and those whose are not. Among them those that
    /// were removed, as long as processors may remember something of them: it is to be forgotten with the
    /// others' translations.
    fn views_by_kind(&self) -> (u64, u64) {
        let (mut plain, mut nested) = (0, 0);
        for (number, word) in (0u8..).zip(&*self.views) {
            match word.load(Ordering::Acquire) {
                0 | CLAIMED => {}
                word if word & NESTED != 0 => nested |= View(number).bit(),
                _ => plain |= View(number).bit(),
            }
        }
        (plain, nested)
    }

    pub(crate) fn plain_views(&self) -> u64 {
        self.views_by_kind().0
    }

    pub(crate) fn nested_views(&self) -> u64 {
        self.views_by_kind().1
    }

    pub(crate) fn for_each_plain_view(&self, mut visit: impl FnMut(View)) {
        for number in ones(self.plain_views()) {
            #[allow(clippy::cast_possible_truncation)] // below 64
            visit(View::numbered(number as u8));
        }
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
            if let Some(root) = self.take_root(View(number)) {
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
