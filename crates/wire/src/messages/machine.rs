//! A guest's devices and auxiliary memory as they are described to the other
//! side.
//!
//! The device state says by name and place to which device each piece of it
//! belongs. A destination with another device in a slot, or with a ROM of another
//! size, finds that out while it loads: after the guest was paused. So both
//! sides compare beforehand what their machines consist of.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::bounded::{Label, List};

/// Most devices of one guest.
pub const MAX_DEVICES: usize = 4096;

/// Most pieces of auxiliary memory of one guest.
pub const MAX_AUXILIARY: usize = 4096;

/// What a machine consists of, besides processors and main memory. With both
/// lists empty nothing was said, and nothing is compared.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// Its devices, in any order.
    #[serde(with = "List::<MAX_DEVICES>")]
    pub devices: Vec<Device>,
    /// Memory that travels with the device state: video memory, firmware, option
    /// ROMs, tables.
    #[serde(with = "List::<MAX_AUXILIARY>")]
    pub auxiliary: Vec<Auxiliary>,
}

/// A device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Device {
    /// Where it is: buses and addresses, as in `pcie.0/02.0/00.0`. Empty for one
    /// that is on no bus with addresses: of these, only the types and their
    /// numbers are compared.
    #[serde(with = "Label")]
    pub place: Box<str>,
    /// Its type, in the hypervisor's words.
    #[serde(with = "Label")]
    pub kind: Box<str>,
    /// What its owner calls it; may be empty, and may differ.
    #[serde(with = "Label")]
    pub name: Box<str>,
    /// For PCI: vendor in the upper, device in the lower 16 bits; 0 otherwise. A
    /// part of the board may have another type in another version of the
    /// hypervisor; with the same number it is the same device to the guest.
    pub pci: u32,
}

/// A piece of auxiliary memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Auxiliary {
    /// Its name, by which the device state refers to it.
    #[serde(with = "Label")]
    pub name: Box<str>,
    /// How long it is now, in bytes.
    pub bytes: u64,
    /// How long it can become, in bytes: more than `bytes` only where the
    /// length may change.
    pub most: u64,
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (devices, auxiliary) = (self.devices.len(), self.auxiliary.len());
        write!(
            f,
            "{devices} devices, {auxiliary} pieces of auxiliary memory"
        )
    }
}
