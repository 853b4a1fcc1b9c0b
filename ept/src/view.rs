//! Views: sets of tables with their own root (EPT pointer) over the same guest frames.

use crate::address::{GfnRange, HostFrame, usize_from};
use crate::atomic::Ordering;
use crate::bitmap::ones;
use crate::eptp::Eptp;
use crate::guest::{CreateError, Guest};
use crate::host_memory::HostMemory;
use crate::tlb_flush::TlbFlush;
use crate::walk::Node;

/// Maximum number of views of a guest, including [`View::MAIN`].
pub const MAX_VIEWS: usize = if cfg!(loom) { 2 } else { 64 };

/// Flag of a view's word: the addresses of the view are not guest frame numbers.
const NESTED: u64 = 1;
/// The word of a view that is being created.
const CLAIMED: u64 = 2;
/// Flag of a view's word: the view was removed, but processors may still have cached translations
/// of its root.
const REMOVED: u64 = 4;

/// One set of tables of a guest, with one root.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct View(u8);

impl View {
    /// The view that every guest has.
    pub const MAIN: Self = Self(0);

    /// Returns the number of the view; less than [`MAX_VIEWS`].
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

impl<M: HostMemory> Guest<M> {
    /// Returns [`Guest::eptp`] of [`View::MAIN`], which always exists.
    pub fn main_eptp(&self) -> Eptp {
        let root = HostFrame::containing(self.views[0].load(Ordering::Acquire));
        Eptp::new(root, self.capabilities.accessed_dirty)
    }

    /// Adds a view whose addresses are guest frame numbers, like [`View::MAIN`]: another set of
    /// permissions for the same guest.
    ///
    /// # Errors
    ///
    /// [`CreateError::TooManyViews`], [`CreateError::NoMemory`].
    pub fn add_view(&self) -> Result<View, CreateError> {
        self.add(0)
    }

    /// Adds a nested view: the second stage of an L2 guest. It has an address space of its own, and
    /// its leaves map this guest's frames at any address.
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
                let gfn_table = root.gfn_table.map_or(0, HostFrame::address);
                self.gfn_tables[usize::from(number)].store(gfn_table, Ordering::Release);
                word.store(root.table.address() | kind, Ordering::Release);
                return Ok(View(number));
            }
        }
        self.free_node(root);
        Err(CreateError::TooManyViews)
    }

    /// Removes a view and all its mappings. No vCPU may enter with this view any more.
    /// [`View::MAIN`] itself is not removed, only its mappings.
    ///
    /// The view's number and the frame of its root are not reused before the flush is done, because
    /// processors tag cached translations with the address of the root.
    pub fn remove_view(&self, view: View) -> TlbFlush {
        let mut flush = self.unmap(view, GfnRange::TRANSLATED);
        if view != View::MAIN {
            let _guard = self.rcu.read();
            if let Some(root) = self.take_root(view) {
                flush.add_removed_views(view.bit());
                // A thread that is still in the view finds detached entries, and then no view.
                self.detach_tree(&mut flush, view, root);
            }
        }
        flush
    }

    /// Returns the EPT pointer for the VMCS of a vCPU that runs in `view`; `None` if the view does
    /// not exist.
    pub fn eptp(&self, view: View) -> Option<Eptp> {
        let root = self.root(view)?.table;
        Some(Eptp::new(root, self.capabilities.accessed_dirty))
    }

    /// Returns the EPT pointers of the views that `flush` applies to, including views that were
    /// removed: the operands of `INVEPT` in
    /// [`Processors::invalidate`](crate::Processors::invalidate).
    pub fn eptps(&self, flush: &TlbFlush) -> impl Iterator<Item = Eptp> {
        let concerned = ones(flush.views()).filter_map(|number| self.views.get(usize_from(number)));
        concerned.filter_map(|word| {
            let value = word.load(Ordering::Acquire);
            let root = HostFrame::containing(value);
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
                let table = HostFrame::containing(value);
                return (value > CLAIMED).then_some(Node { table, gfn_table });
            }
            let gfn_table = self.gfn_tables[number].load(Ordering::Acquire);
            // Another view may have taken the number: check that the root did not change.
            if word.load(Ordering::Acquire) == value {
                let gfn_table = Some(HostFrame::containing(gfn_table));
                let table = HostFrame::containing(value);
                return Some(Node { table, gfn_table });
            }
        }
    }

    /// Marks a view as removed. Exactly one caller gets its root. The caller holds an RCU read
    /// guard.
    pub(crate) fn take_root(&self, view: View) -> Option<Node> {
        let word = self.views.get(usize::from(view.0))?;
        loop {
            let value = word.load(Ordering::Acquire);
            let root = self.root(view)?;
            if root.table == HostFrame::containing(value)
                && word
                    .compare_exchange(value, value | REMOVED, Ordering::AcqRel, Ordering::Relaxed)
                    .is_ok()
            {
                return Some(root);
            }
        }
    }

    /// Makes the numbers of removed views available again. No processor caches translations of
    /// their roots any more.
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

    /// Returns the views whose addresses are guest frame numbers, and the nested views. Removed
    /// views are included as long as processors may cache translations of them: a flush must
    /// invalidate those too.
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
}
