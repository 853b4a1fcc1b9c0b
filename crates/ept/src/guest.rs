//! A guest's second-stage tables: its views, and what all operations share.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use core::fmt;

use thiserror::Error;

use crate::address::{ENTRIES, Frame, Gfn, GfnRange, Level, MAX_PAGES};
use crate::atomic::{AtomicU64, Ordering};
use crate::bits::ones;
use crate::capability::{Capabilities, Eptp};
use crate::entry::Entry;
use crate::flush::Flush;
use crate::log::Log;
use crate::memory::Memory;
use crate::rmap::{Location, NoMemory, Rmap};
use crate::spin::SpinLock;
use crate::walkers::Walkers;

/// Views a guest can have, [`View::MAIN`] included.
pub const MAX_VIEWS: usize = if cfg!(loom) { 2 } else { 64 };

/// In a view's word: its addresses are not guest frame numbers.
const NESTED: u64 = 1;

/// A guest frame that no guest has.
const NOWHERE: Gfn = Gfn::new(u64::MAX >> 12);

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
pub struct Guest<M: Memory> {
    pub(crate) memory: M,
    pub(crate) pages: u64,
    pub(crate) capabilities: Capabilities,
    /// The views' root tables, and whether they are nested; zero: no such view.
    views: Box<[AtomicU64]>,
    /// Not zero once there has been a nested view: until then nobody looks for origins.
    ever_nested: AtomicU64,
    /// For each table of a nested view, the frame that says which guest frame each leaf maps (plus 1).
    origins: SpinLock<BTreeMap<Frame, Frame>>,
    pub(crate) walkers: Walkers,
    pub(crate) rmap: Rmap,
    pub(crate) log: Log,
}

impl<M: Memory> Guest<M> {
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
        let root = memory.allocate().ok_or(CreateError::NoMemory)?;
        let views: Box<[AtomicU64]> = (0..MAX_VIEWS).map(|_| AtomicU64::new(0)).collect();
        views[0].store(root.address(), Ordering::Release);
        Ok(Self {
            memory,
            pages,
            capabilities,
            views,
            ever_nested: AtomicU64::new(0),
            origins: SpinLock::new(BTreeMap::new()),
            walkers: Walkers::new(),
            rmap,
            log,
        })
    }

    /// All guest frames.
    pub fn all(&self) -> GfnRange {
        GfnRange::from_len(Gfn::new(0), self.pages)
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
        let root = self.memory.allocate().ok_or(CreateError::NoMemory)?;
        if kind == NESTED {
            self.ever_nested.store(1, Ordering::Release);
        }
        for (number, word) in (0u8..).zip(&*self.views) {
            let value = root.address() | kind;
            if word
                .compare_exchange(0, value, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
            {
                return Ok(View(number));
            }
        }
        self.memory.release(root);
        Err(CreateError::TooManyViews)
    }

    /// Removes a view and everything mapped there. No virtual processor may enter with it any more.
    /// [`View::MAIN`] stays (only its mappings go).
    pub fn remove_view(&self, view: View) -> Flush {
        let mut flush = self.unmap(view, GfnRange::from_len(Gfn::new(0), MAX_PAGES));
        if view != View::MAIN {
            let word = self.views[usize::from(view.0)].swap(0, Ordering::AcqRel);
            if word != 0 {
                flush.add_whole(view.bit());
                // Whoever is still in the view finds dead entries, and then no view.
                let _inside = self.walkers.enter();
                let root = Frame::containing(word);
                self.kill(&mut flush, view, root, Level::Root, Gfn::new(0));
            }
        }
        flush
    }

    /// The word to put into the VMCS of a virtual processor that runs in `view`; `None` if there is no
    /// such view.
    pub fn eptp(&self, view: View) -> Option<Eptp> {
        Some(Eptp::new(
            self.root(view)?,
            self.capabilities.accessed_dirty,
        ))
    }

    pub(crate) fn root(&self, view: View) -> Option<Frame> {
        let word = self.views.get(usize::from(view.0))?.load(Ordering::Acquire);
        (word != 0).then(|| Frame::containing(word))
    }

    pub(crate) fn is_nested(&self, view: View) -> bool {
        let word = self.views.get(usize::from(view.0));
        word.is_some_and(|word| word.load(Ordering::Acquire) & NESTED != 0)
    }

    /// The views whose addresses are guest frame numbers, and those whose are not.
    fn views_by_kind(&self) -> (u64, u64) {
        let (mut plain, mut nested) = (0, 0);
        for (number, word) in (0u8..).zip(&*self.views) {
            match word.load(Ordering::Acquire) {
                0 => {}
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
        if self.ever_nested.load(Ordering::Acquire) == 0 {
            0
        } else {
            self.views_by_kind().1
        }
    }

    pub(crate) fn each_plain_view(&self, mut visit: impl FnMut(View)) {
        for number in ones(self.plain_views()) {
            #[allow(clippy::cast_possible_truncation)] // below 64
            visit(View::numbered(number as u8));
        }
    }

    /// Bytes of host memory in use for the reverse map.
    pub fn reverse_map_bytes(&self) -> u64 {
        self.rmap.frames() * crate::address::FRAME_BYTES + self.rmap.directory_bytes()
    }

    /// A table, with the frame beside it that a nested view needs.
    pub(crate) fn new_table(&self, nested: bool) -> Result<Frame, NoMemory> {
        let table = self.memory.allocate().ok_or(NoMemory)?;
        if nested {
            let Some(origin) = self.memory.allocate() else {
                self.memory.release(table);
                return Err(NoMemory);
            };
            self.origins.lock().insert(table, origin);
        }
        Ok(table)
    }

    /// Frees a table that nobody sees.
    pub(crate) fn free_table(&self, table: Frame) {
        // Bound first: the lock must not be held while the hypervisor's allocator runs.
        let origin = if self.ever_nested.load(Ordering::Acquire) == 0 {
            None
        } else {
            self.origins.lock().remove(&table)
        };
        if let Some(origin) = origin {
            self.memory.release(origin);
        }
        self.memory.release(table);
    }

    fn origin(&self, location: Location) -> Option<&AtomicU64> {
        let frame = self.origins.lock().get(&location.table()).copied()?;
        Some(&self.memory.table(frame)[location.index()])
    }

    /// Whether the entry lies in a table of a nested view.
    pub(crate) fn in_nested(&self, location: Location) -> bool {
        self.ever_nested.load(Ordering::Acquire) != 0
            && self.origins.lock().contains_key(&location.table())
    }

    /// Notes which guest frame the leaf at `location` of a nested view maps.
    pub(crate) fn set_origin(&self, location: Location, gfn: Gfn) {
        if let Some(word) = self.origin(location) {
            word.store(gfn.index() + 1, Ordering::Release);
        }
    }

    /// The guest frame that the leaf at `location`, for `at`, maps. Of a nested view's leaf it is certain
    /// only while the entry is busy: it may be mapped anew meanwhile.
    pub(crate) fn gfn_at(&self, view: View, location: Location, at: Gfn) -> Gfn {
        if self.is_nested(view) {
            self.origin_of(location).unwrap_or(NOWHERE)
        } else {
            at
        }
    }

    /// The guest frame that the entry of a nested view maps.
    pub(crate) fn origin_of(&self, location: Location) -> Option<Gfn> {
        let word = self.origin(location)?.load(Ordering::Acquire);
        Some(Gfn::new(word.checked_sub(1)?))
    }

    fn free_tree(&self, table: Frame, level: Level) {
        if let Some(below) = level.below() {
            for index in 0..ENTRIES {
                let entry = Entry(self.memory.table(table)[index].load(Ordering::Acquire));
                if entry.is_table(level) {
                    self.free_tree(entry.frame(), below);
                }
            }
        }
        self.free_table(table);
    }
}

impl<M: Memory> Drop for Guest<M> {
    fn drop(&mut self) {
        for number in 0..self.views.len() {
            let word = self.views[number].swap(0, Ordering::AcqRel);
            if word != 0 {
                self.free_tree(Frame::containing(word), Level::Root);
            }
        }
        self.rmap.release(&self.memory);
        self.log.release(&self.memory);
    }
}

impl<M: Memory> fmt::Debug for Guest<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guest")
            .field("pages", &self.pages)
            .field("capabilities", &self.capabilities)
            .field("log", &self.log)
            .finish_non_exhaustive()
    }
}
