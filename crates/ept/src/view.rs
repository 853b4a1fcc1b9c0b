//! The views.

use crate::address::{Frame, GfnRange, usize_from};
use crate::atomic::Ordering;
use crate::bitmap::ones;
use crate::eptp::Eptp;
use crate::guest::{CreateError, Guest};
use crate::host_memory::HostMemory;
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

impl<M: HostMemory> Guest<M> {
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
    pub(crate) fn take_root(&self, view: View) -> Option<Node> {
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
}
