//! The names of values, as they are sent and stored: for file names, labels and pages.

use hikkoshi_handover::{DestinationStage, SourceStage};

use crate::{Converges, GuestAt, Phase, Side, Stage};

impl Side {
    /// Both sides.
    pub const ALL: [Self; 2] = [Self::Source, Self::Destination];

    /// Its name, as it is sent and stored.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Source => "source",
            Self::Destination => "destination",
        }
    }
}

impl Phase {
    /// All phases that are recorded, in the order of a migration.
    pub const ALL: [Self; 5] = [
        Self::Connecting,
        Self::Disks,
        Self::Precopy,
        Self::Switchover,
        Self::Postcopy,
    ];

    /// Its name, as it is sent and stored.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Connecting => "connecting",
            Self::Disks => "disks",
            Self::Precopy => "precopy",
            Self::Switchover => "switchover",
            Self::Postcopy => "postcopy",
            Self::Unknown => "unknown",
        }
    }
}

impl GuestAt {
    /// All places of a guest, in the order of a migration.
    pub const ALL: [Self; 3] = [Self::Source, Self::Paused, Self::Destination];

    /// Its name, as it is sent and stored.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Source => "source",
            Self::Paused => "paused",
            Self::Destination => "destination",
        }
    }
}

impl Converges {
    /// All answers.
    pub const ALL: [Self; 4] = [Self::Yes, Self::No, Self::Switches, Self::Unknown];

    /// Its name, as it is sent and stored.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Yes => "yes",
            Self::No => "no",
            Self::Switches => "switches",
            Self::Unknown => "unknown",
        }
    }
}

impl Stage {
    /// All stages of a side, in order.
    pub fn all(side: Side) -> Vec<Self> {
        match side {
            Side::Source => SourceStage::ALL.map(Self::Source).to_vec(),
            Side::Destination => DestinationStage::ALL.map(Self::Destination).to_vec(),
        }
    }

    /// Its name, as it is sent and stored.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Source(stage) => stage.name(),
            Self::Destination(stage) => stage.name(),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde::Serialize;

    use super::*;

    fn assert_names<T: Serialize + Copy>(all: &[T], name: fn(T) -> &'static str) {
        for value in all {
            let stored = serde_json::to_value(value).unwrap();
            assert_eq!(stored, name(*value));
        }
    }

    #[test]
    fn names_are_what_is_stored() {
        assert_names(&Side::ALL, Side::name);
        assert_names(&Phase::ALL, Phase::name);
        assert_names(&[Phase::Unknown], Phase::name);
        assert_names(&GuestAt::ALL, GuestAt::name);
        assert_names(&Converges::ALL, Converges::name);
        for side in Side::ALL {
            assert_names(&Stage::all(side), Stage::name);
        }
    }
}
