//! Guest frame numbers and host frame numbers, ranges of them, and page table levels.

use core::fmt;

/// Address bits that one table level translates (SDM vol. 3C, "EPT Translation Mechanism"): 9. The
/// loom models use tables of two entries, so that all interleavings of a split can be explored. No
/// other code depends on the value.
pub(crate) const INDEX_BITS: u32 = if cfg!(loom) { 1 } else { 9 };

/// Number of entries of a table.
pub const ENTRIES: usize = 1 << INDEX_BITS;

/// Size of a frame in bytes.
pub const FRAME_BYTES: u64 = 4096;

/// Shift between an address and its frame number.
pub(crate) const FRAME_SHIFT: u32 = 12;

/// Guest frame number: guest-physical address / 4096.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Gfn(u64);

/// Host frame number: host-physical address / 4096 (KVM's PFN).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct HostFrame(u64);

macro_rules! number {
    ($name:ident, $text:literal) => {
        impl $name {
            /// Returns the frame with this number.
            pub const fn new(index: u64) -> Self {
                Self(index)
            }

            /// Returns the frame that contains the byte at `address`.
            pub const fn containing(address: u64) -> Self {
                Self(address >> FRAME_SHIFT)
            }

            /// Returns the frame's number.
            pub const fn index(self) -> u64 {
                self.0
            }

            /// Returns the address of the frame's first byte.
            pub const fn address(self) -> u64 {
                self.0 << FRAME_SHIFT
            }

            /// Returns the frame `count` frames after this one; saturates at the largest number.
            pub const fn plus(self, count: u64) -> Self {
                Self(self.0.saturating_add(count))
            }

            /// Whether a leaf at `level` can start at this frame.
            pub const fn is_aligned(self, level: Level) -> bool {
                self.0 & (level.pages() - 1) == 0
            }

            /// Returns the first frame of the leaf at `level` that would contain this frame.
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
    /// Whether four table levels translate this frame. Do not look up a larger number in the
    /// tables: its upper bits would be dropped, and another page would be found.
    pub(crate) const fn is_translated(self) -> bool {
        self.0 < MAX_PAGES
    }
}

number!(Gfn, "guest frame");
number!(HostFrame, "host frame");

/// A half-open range of guest frames: `start` is included, `end` is not.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct GfnRange {
    start: Gfn,
    end: Gfn,
}

impl GfnRange {
    /// The empty range.
    pub const EMPTY: Self = Self {
        start: Gfn(0),
        end: Gfn(0),
    };

    /// All frames that four table levels translate.
    pub(crate) const TRANSLATED: Self = Self {
        start: Gfn(0),
        end: Gfn(MAX_PAGES),
    };

    /// Creates the range from `start` to `end` (exclusive); empty if `end` is not greater than
    /// `start`.
    pub const fn new(start: Gfn, end: Gfn) -> Self {
        if start.0 < end.0 {
            Self { start, end }
        } else {
            Self { start, end: start }
        }
    }

    /// Creates the range of `count` frames that begins at `start`.
    pub const fn from_len(start: Gfn, count: u64) -> Self {
        Self {
            start,
            end: start.plus(count),
        }
    }

    /// Returns the first frame.
    pub const fn start(self) -> Gfn {
        self.start
    }

    /// Returns the end of the range: the frame after the last one.
    pub const fn end(self) -> Gfn {
        self.end
    }

    /// Returns the number of frames.
    pub const fn len(self) -> u64 {
        self.end.0 - self.start.0
    }

    /// Whether the range is empty.
    pub const fn is_empty(self) -> bool {
        self.start.0 == self.end.0
    }

    /// Whether the range contains `gfn`.
    pub const fn contains(self, gfn: Gfn) -> bool {
        self.start.0 <= gfn.0 && gfn.0 < self.end.0
    }

    /// Whether the range contains all of `other`.
    pub const fn covers(self, other: Self) -> bool {
        other.is_empty() || (self.start.0 <= other.start.0 && other.end.0 <= self.end.0)
    }

    /// Returns the frames that are in both ranges.
    pub fn intersect(self, other: Self) -> Self {
        Self::new(self.start.max(other.start), self.end.min(other.end))
    }

    /// Returns the smallest range that contains both ranges.
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

    /// Splits the range at the multiples of `pages`.
    pub(crate) fn chunks(self, pages: u64) -> impl Iterator<Item = Self> {
        let numbers = if self.is_empty() {
            0..0
        } else {
            self.start.0 / pages..self.end.0.div_ceil(pages)
        };
        numbers.map(move |number| Self::from_len(Gfn(number * pages), pages).intersect(self))
    }

    /// Iterates over the frames.
    pub fn iter(self) -> impl Iterator<Item = Gfn> {
        (self.start.0..self.end.0).map(Gfn)
    }
}

impl fmt::Debug for GfnRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "guest frames {:#x}..{:#x}", self.start.0, self.end.0)
    }
}

/// A table level, and the size of the leaves at that level (SDM vol. 3C, "EPT Translation
/// Mechanism").
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// A page table (EPT PTEs); its leaves map 4 KiB.
    Size4K = 1,
    /// A page directory (EPT PDEs); its leaves map 2 MiB.
    Size2M = 2,
    /// A page-directory-pointer table (EPT PDPTEs); its leaves map 1 GiB.
    Size1G = 3,
    /// The root table (EPT PML4Es); it has no leaves. An entry covers 512 GiB.
    Root = 4,
}

impl Level {
    /// The levels that can have leaves, largest size first.
    pub const LEAVES: [Self; 3] = [Self::Size1G, Self::Size2M, Self::Size4K];

    /// Returns the number of 4 KiB pages that one entry at this level covers.
    pub const fn pages(self) -> u64 {
        1 << (INDEX_BITS * (self as u32 - 1))
    }

    /// Returns the index of the entry for `at` in a table at this level.
    #[allow(clippy::cast_possible_truncation)] // masked to ENTRIES
    pub(crate) const fn index_of(self, at: Gfn) -> usize {
        (at.0 >> (INDEX_BITS * (self as u32 - 1))) as usize & (ENTRIES - 1)
    }

    /// Returns the next lower level, or `None` for the lowest.
    pub const fn below(self) -> Option<Self> {
        match self {
            Self::Size4K => None,
            Self::Size2M => Some(Self::Size4K),
            Self::Size1G => Some(Self::Size2M),
            Self::Root => Some(Self::Size1G),
        }
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Size4K => "4 KiB",
            Self::Size2M => "2 MiB",
            Self::Size1G => "1 GiB",
            Self::Root => "512 GiB",
        })
    }
}

/// Number of guest frames that four table levels translate: 2^36 (48-bit guest-physical addresses).
pub const MAX_PAGES: u64 = Level::Root.pages() << INDEX_BITS;

/// Converts a number of frames to an index.
#[allow(clippy::cast_possible_truncation)] // 64-bit hosts only, checked at the crate root
pub(crate) const fn usize_from(number: u64) -> usize {
    number as usize
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn levels_have_the_sizes_of_the_sdm() {
        assert_eq!(Level::Size4K.pages() * FRAME_BYTES, 4 << 10);
        assert_eq!(Level::Size2M.pages() * FRAME_BYTES, 2 << 20);
        assert_eq!(Level::Size1G.pages() * FRAME_BYTES, 1 << 30);
        assert_eq!(Level::Root.pages() * FRAME_BYTES, 512 << 30);
        assert_eq!(MAX_PAGES * FRAME_BYTES, 1 << 48);
    }

    #[test]
    fn range_operations() {
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
