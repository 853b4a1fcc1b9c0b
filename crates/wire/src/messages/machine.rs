//! A guest's devices and auxiliary memory, as described to the other side.
//!
//! The device state identifies by name and address which device each section
//! belongs to. If the destination has another device in a slot, or a ROM of
//! another size, loading fails, and that is after the guest was paused. So both
//! machines are compared beforehand.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::bounded::{Label, List};

/// The most devices of one guest.
pub(crate) const MAX_DEVICES: usize = 4096;

/// The most blocks of auxiliary memory of one guest.
pub(crate) const MAX_AUXILIARY: usize = 4096;

/// The devices and the auxiliary memory of a machine. If both lists are empty,
/// the machine is unknown and not compared.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// Its devices, in any order; at most 4096.
    #[serde(with = "List::<MAX_DEVICES>")]
    pub devices: Vec<Device>,
    /// Memory that is sent with the device state: video memory, firmware, option
    /// ROMs, tables. At most 4096 blocks.
    #[serde(with = "List::<MAX_AUXILIARY>")]
    pub auxiliary: Vec<AuxiliaryBlock>,
}

/// A device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Device {
    /// Its buses and its addresses on them, as in `pcie.0/02.0/00.0`. Empty for
    /// a device that has no address: of these, only the number of each type is
    /// compared.
    #[serde(with = "Label")]
    pub place: Box<str>,
    /// Its type, as the hypervisor names it.
    #[serde(with = "Label")]
    pub kind: Box<str>,
    /// The id that its owner gave it. May be empty, and may differ.
    #[serde(with = "Label")]
    pub name: Box<str>,
    /// For PCI: the vendor id in the upper, the device id in the lower 16 bits;
    /// otherwise 0. A device of the board may have another type in another
    /// version of the hypervisor. With the same ids it is the same device to
    /// the guest.
    pub pci: u32,
}

/// A block of auxiliary memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuxiliaryBlock {
    /// Its name, by which the device state refers to it.
    #[serde(with = "Label")]
    pub name: Box<str>,
    /// Its current length in bytes.
    pub bytes: u64,
    /// Its largest length in bytes: more than `bytes` only if the length can
    /// change.
    pub most: u64,
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (devices, auxiliary) = (self.devices.len(), self.auxiliary.len());
        write!(
            f,
            "{devices} devices, {auxiliary} blocks of auxiliary memory"
        )
    }
}
