//! Looking up.

use crate::address::{Frame, Gfn, Level};
use crate::atomic::cpu_relax;
use crate::attributes::{MemoryType, PageType, Permissions};
use crate::entry::Entry;
use crate::guest::Guest;
use crate::host_memory::HostMemory;
use crate::view::View;

/// What is mapped at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lookup {
    /// What the page is.
    pub page_type: PageType,
    /// The guest frame, for memory.
    pub gfn: Option<Gfn>,
    /// The host frame of just this page, for memory.
    pub host: Option<Frame>,
    /// The size of the leaf; of the hole, where nothing is mapped.
    pub level: Level,
    /// What the mapping allows.
    pub permissions: Option<Permissions>,
    /// How the processor caches it.
    pub memory_type: Option<MemoryType>,
    /// The entry itself, with its flags and what the dirty log holds back.
    pub entry: Entry,
}

impl<M: HostMemory> Guest<M> {
    /// What is mapped at `at`; `None` if there is no such view, or `at` is not below
    /// [`MAX_PAGES`](crate::MAX_PAGES).
    pub fn lookup(&self, view: View, at: Gfn) -> Option<Lookup> {
        loop {
            let _guard = self.rcu.read();
            let found = self.walk(view, at, Level::Size4K)?;
            let entry = found.entry;
            if entry.is_frozen() {
                cpu_relax();
                continue;
            }
            let offset = at.index() - at.align_down(found.level).index();
            let leaf = entry.is_leaf(found.level);
            let start = at.align_down(found.level);
            return Some(Lookup {
                page_type: entry.page_type(),
                gfn: leaf.then(|| found.gfn(start).plus(offset)),
                host: leaf.then(|| entry.frame().plus(offset)),
                level: found.level,
                permissions: entry.granted().filter(|_| leaf),
                memory_type: entry.memory_type().filter(|_| leaf),
                entry,
            });
        }
    }
}
