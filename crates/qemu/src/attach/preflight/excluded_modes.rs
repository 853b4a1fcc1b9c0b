//! Which modes an obstacle excludes.

use hikkoshi_engine::Mode;

use super::Refusal;

/// The modes in which a guest cannot be moved because of an obstacle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Excludes {
    /// All of them.
    AllModes,
    /// Those with pre-copy rounds: pre-copy and hybrid.
    Rounds,
    /// Those that end in post-copy: post-copy and hybrid.
    Postcopy,
}

impl Excludes {
    /// Whether this mode is among them.
    pub fn includes(self, mode: Mode) -> bool {
        self == Self::AllModes || self.some(mode)
    }

    /// Whether this mode is among them, and another is not.
    pub(crate) fn some(self, mode: Mode) -> bool {
        match self {
            Self::AllModes => false,
            Self::Rounds => mode != Mode::Postcopy,
            Self::Postcopy => mode != Mode::Precopy,
        }
    }
}

impl Refusal {
    /// Which modes it excludes.
    pub fn excludes(&self) -> Excludes {
        match self {
            Self::Rounds { .. }
            | Self::Nested { .. }
            | Self::DoesNotDrain { .. }
            | Self::PinningSince { .. }
            | Self::Untracked { .. } => Excludes::Rounds,
            Self::ReturnsMemory { .. } => Excludes::Postcopy,
            _ => Excludes::AllModes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_of_obstacle_leaves_the_other_modes() {
        let modes = |excludes: Excludes| {
            [Mode::Precopy, Mode::Postcopy, Mode::Hybrid].map(|mode| excludes.includes(mode))
        };
        assert_eq!(modes(Excludes::AllModes), [true; 3]);
        assert_eq!(modes(Excludes::Rounds), [true, false, true]);
        assert_eq!(modes(Excludes::Postcopy), [false, true, true]);
        assert_eq!(
            Refusal::Nested { feature: "vmx" }.excludes(),
            Excludes::Rounds
        );
    }
}
