//! Numbers of guest frames and host frames, ranges of them, and the levels of the tables.

use core::fmt;

/// Bitmap of an address that one level of the tables translates (SDM vol. 3C, "EPT Translation
/// Mechanism"): 9. The loom models use tables of two entries, so that every interleaving of a split
/// can be tried; nothing else in the crate knows the difference.
pub const INDEX_BITS: u32 = if cfg!(loom) { 1 } else { 9 };

/// Entries of one table.
pub const ENTRIES: usize = 1 << INDEX_BITS;

/// Bytes of a frame.
pub const FRAME_BYTES: u64 = 4096;

/// Position of the frame number in an address.
pub(crate) const FRAME_SHIFT: u32 = 12;

/// Number of a guest frame: guest-physical address / 4096.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Gfn(u64);

/// Number of a host frame: host-physical address / 4096.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Frame(u64);

macro_rules! number {
    ($name:ident, $text:literal) => {
        impl $name {
            /// The frame with this number.
            pub const fn new(index: u64) -> Self {
                Self(index)
            }

            /// The frame that holds the byte at `address`.
            pub const fn containing(address: u64) -> Self {
                Self(address >> FRAME_SHIFT)
            }

            /// The frame's number.
            pub const fn index(self) -> u64 {
                self.0
            }

            /// Address of the frame's first byte.
            pub const fn address(self) -> u64 {
                self.0 << FRAME_SHIFT
            }

            /// The frame `count` frames further on; stays at the last number there is.
            pub const fn plus(self, count: u64) -> Self {
                Self(self.0.saturating_add(count))
            }

            /// Whether a leaf at `level` can start here.
            pub const fn is_aligned(self, level: Level) -> bool {
                self.0 & (level.pages() - 1) == 0
            }

            /// The first frame of the leaf at `level` that would hold this one.
            pub const fn align_down(self, level: Level) -> Self {
                Self(self.0 & !(level.pages() - 1))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($text, " {:#x}"), self.0)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($text, " {:#x}"), self.0)
            }
        }
    };
}

impl Gfn {
    /// Whether four levels of tables have an entry for it. An address beyond must not be looked for in
    /// them: its upper bits would be dropped, and another page found.
    pub(crate) const fn is_translated(self) -> bool {
        self.0 < MAX_PAGES
    }
}

number!(Gfn, "guest frame");
number!(Frame, "host frame");

/// Guest frames from `start` up to, but without, `end`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct GfnRange {
    start: Gfn,
    end: Gfn,
}

impl GfnRange {
    /// No frame at all.
    pub const EMPTY: Self = Self {
        start: Gfn(0),
        end: Gfn(0),
    };

    /// What four levels of tables translate.
    pub(crate) const TRANSLATED: Self = Self {
        start: Gfn(0),
        end: Gfn(MAX_PAGES),
    };

    /// From `start` up to, but without, `end`; empty if `end` does not lie behind `start`.
    pub const fn new(start: Gfn, end: Gfn) -> Self {
        if start.0 < end.0 {
            Self { start, end }
        } else {
            Self { start, end: start }
        }
    }

    /// `count` frames from `start` on.
    pub const fn from_len(start: Gfn, count: u64) -> Self {
        Self {
            start,
            end: start.plus(count),
        }
    }

    /// The first frame.
    pub const fn start(self) -> Gfn {
        self.start
    }

    /// The frame behind the last.
    pub const fn end(self) -> Gfn {
        self.end
    }

    /// Number of frames.
    pub const fn len(self) -> u64 {
        self.end.0 - self.start.0
    }

    /// Whether there is no frame in it.
    pub const fn is_empty(self) -> bool {
        self.start.0 == self.end.0
    }

    /// Whether `gfn` is in it.
    pub const fn contains(self, gfn: Gfn) -> bool {
        self.start.0 <= gfn.0 && gfn.0 < self.end.0
    }

    /// Whether all of `other` is in it.
    pub const fn covers(self, other: Self) -> bool {
        other.is_empty() || (self.start.0 <= other.start.0 && other.end.0 <= self.end.0)
    }

    /// The frames that are in both.
    pub fn intersect(self, other: Self) -> Self {
        Self::new(self.start.max(other.start), self.end.min(other.end))
    }

    /// The smallest range with both in it.
    pub fn hull(self, other: Self) -> Self {
        if self.is_empty() {
            other
        } else if other.is_empty() {
            self
        } else {
            Self {
                start: self.start.min(other.start),
                end: self.end.max(other.end),
            }
        }
    }

    /// The parts of it between multiples of `pages`.
    pub(crate) fn chunks(self, pages: u64) -> impl Iterator<Item = Self> {
        let numbers = if self.is_empty() {
            0..0
        } else {
            self.start.0 / pages..self.end.0.div_ceil(pages)
        };
        numbers.map(move |number| Self::from_len(Gfn(number * pages), pages).intersect(self))
    }

    /// The frames, one by one.
    pub fn iter(self) -> impl Iterator<Item = Gfn> {
        (self.start.0..self.end.0).map(Gfn)
    }
}

impl fmt::Debug for GfnRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "guest frames {:#x}..{:#x}", self.start.0, self.end.0)
    }
}

/// A level of the tables, and the size of a leaf there (SDM vol. 3C, "EPT Translation Mechanism").
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// A page table (EPT PTEs); its leaves map 4 KiB.
    Size4K = 1,
    /// A page directory (EPT PDEs); its leaves map 2 MiB.
    Size2M = 2,
    /// A page-directory-pointer table (EPT PDPTEs); its leaves map 1 GiB.
    Size1G = 3,
    /// The root (EPT PML4Es); no leaves.
    Root = 4,
}

impl Level {
    /// The levels that can have leaves, largest first.
    pub const LEAVES: [Self; 3] = [Self::Size1G, Self::Size2M, Self::Size4K];

    /// 4 KiB pages that one entry of a table at this level covers.
    pub const fn pages(self) -> u64 {
        1 << (INDEX_BITS * (self as u32 - 1))
    }

    /// The entry of a table at this level through which the way to `at` leads.
    #[allow(clippy::cast_possible_truncation)] // masked to ENTRIES
    pub(crate) const fn index_of(self, at: Gfn) -> usize {
        (at.0 >> (INDEX_BITS * (self as u32 - 1))) as usize & (ENTRIES - 1)
    }

    /// The next level on the way down, if there is one.
    pub const fn below(self) -> Option<Self> {
        match self {
            Self::Size4K => None,
            Self::Size2M => Some(Self::Size4K),
            Self::Size1G => Some(Self::Size2M),
            Self::Root => Some(Self::Size1G),
        }
    }
}

/// Frames that four levels can translate: 2^36 (48-bit guest-physical addresses).
pub const MAX_PAGES: u64 = Level::Root.pages() << INDEX_BITS;

/// A number of frames as an index.
#[allow(clippy::cast_possible_truncation)] // 64-bit hosts only, checked at the crate root
pub(crate) const fn usize_from(number: u64) -> usize {
    number as usize
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn levels_cover_what_the_sdm_says() {
        assert_eq!(Level::Size4K.pages() * FRAME_BYTES, 4 << 10);
        assert_eq!(Level::Size2M.pages() * FRAME_BYTES, 2 << 20);
        assert_eq!(Level::Size1G.pages() * FRAME_BYTES, 1 << 30);
        assert_eq!(Level::Root.pages() * FRAME_BYTES, 512 << 30);
        assert_eq!(MAX_PAGES * FRAME_BYTES, 1 << 48);
    }

    #[test]
    fn ranges() {
        let range = GfnRange::from_len(Gfn::new(10), 5);
        assert_eq!(range.len(), 5);
        assert!(range.contains(Gfn::new(14)) && !range.contains(Gfn::new(15)));
        assert!(GfnRange::new(Gfn::new(5), Gfn::new(3)).is_empty());
        assert!(
            range
                .intersect(GfnRange::from_len(Gfn::new(0), 10))
                .is_empty()
        );
        assert_eq!(range.hull(GfnRange::EMPTY), range);
        assert!(range.covers(GfnRange::EMPTY));
        let parts: [u64; 3] = core::array::from_fn(|n| {
            let part = GfnRange::from_len(Gfn::new(3), 7).chunks(4).nth(n);
            part.map_or(0, GfnRange::len)
        });
        assert_eq!(parts, [1, 4, 2]);
        assert_eq!(GfnRange::EMPTY.chunks(4).count(), 0);
    }
}
