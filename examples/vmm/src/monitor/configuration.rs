//! The part of QEMU's configuration device (`fw_cfg`) that the guest reads: the number of
//! processors.

use serde::{Deserialize, Serialize};

const PROCESSORS: u16 = 5;

/// What is selected, and how much of it was read.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Configuration {
    processors: u8,
    selected: u16,
    read: u8,
}

impl Configuration {
    pub(crate) fn new(processors: u8) -> Self {
        Self {
            processors,
            selected: 0,
            read: 0,
        }
    }

    pub(crate) fn select(&mut self, item: u16) {
        (self.selected, self.read) = (item, 0);
    }

    /// The next byte of the selected item; zeros after its end.
    pub(crate) fn read(&mut self) -> u8 {
        let first = self.read == 0;
        self.read = self.read.saturating_add(1);
        match self.selected {
            PROCESSORS if first => self.processors,
            _ => 0,
        }
    }
}
