//! Protocol versions.

/// The protocol versions that one side supports: all from `min` to `max`. The
/// first version is 1.
///
/// Each side sends both numbers. So if they have no version in common, both know
/// it from the hellos alone, and also the older program, which cannot know why a
/// newer one refuses it, says which side to update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Versions {
    min: u16,
    max: u16,
}

impl Versions {
    /// The versions that this build supports.
    pub const SUPPORTED: Self = Self { min: 1, max: 1 };

    /// Returns the versions from `min` to `max`, both included; `None` if `min` is
    /// 0 or above `max`.
    #[must_use]
    pub const fn new(min: u16, max: u16) -> Option<Self> {
        if min == 0 || min > max {
            None
        } else {
            Some(Self { min, max })
        }
    }

    /// Returns the lowest version.
    #[must_use]
    pub const fn min(self) -> u16 {
        self.min
    }

    /// Returns the highest version.
    #[must_use]
    pub const fn max(self) -> u16 {
        self.max
    }

    /// Returns the highest version that both sides support.
    #[must_use]
    pub(crate) fn highest_common(self, other: Self) -> Option<u16> {
        let highest = self.max.min(other.max);
        (highest >= self.min && highest >= other.min).then_some(highest)
    }
}
