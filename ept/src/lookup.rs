//! Looking up what is mapped at an address.

use crate::address::{Gfn, HostFrame, Level};
use crate::atomic::cpu_relax;
use crate::attributes::{MemoryType, PageType, Permissions};
use crate::entry::Entry;
use crate::guest::Guest;
use crate::host_memory::HostMemory;
use crate::view::View;

/// What is mapped at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lookup {
    /// The type of the page.
    pub page_type: PageType,
    /// The guest frame, if memory is mapped.
    pub gfn: Option<Gfn>,
    /// The host frame of this 4 KiB page, if memory is mapped.
    pub host: Option<HostFrame>,
    /// The size of the leaf, or of the hole if nothing is mapped.
    pub level: Level,
    /// The permissions of the mapping.
    pub permissions: Option<Permissions>,
    /// The memory type of the mapping.
    pub memory_type: Option<MemoryType>,
    /// The entry itself, with its flags and the permissions that the processor applies now.
    pub entry: Entry,
}

impl<M: HostMemory> Guest<M> {
    /// Returns what is mapped at `at`; `None` if the view does not exist or `at` is not below
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
