//! A virtio device on PCI (virtio 1.1, section 4.1): its registers, features, queues and interrupt.

use super::pci::Device;
use super::queue::{Layout, Queue};
use super::registers::Registers;
use crate::interrupts::NETWORK;

const VENDOR: u16 = 0x1af4;
/// Capabilities of PCI.
const VENDOR_SPECIFIC: u8 = 0x09;
const MSI_X: u8 = 0x11;
/// Kinds of the vendor's.
const COMMON: u8 = 1;
const NOTIFY: u8 = 2;
const SPECIFIC: u8 = 4;

/// Registers of the common configuration.
const FEATURES_SELECT: usize = 0;
const FEATURES: usize = 4;
const ACCEPTED_SELECT: usize = 8;
const ACCEPTED: usize = 12;
const STATUS: usize = 20;
const QUEUE_SELECT: usize = 22;
const QUEUE_SIZE: usize = 24;
const QUEUE_VECTOR: usize = 26;
const QUEUE_ENABLE: usize = 28;
const QUEUE_NOTIFY: usize = 30;
const QUEUE_DESCRIPTORS: usize = 32;
const QUEUE_AVAILABLE: usize = 40;
const QUEUE_USED: usize = 48;

/// Bits of the status.
const ACKNOWLEDGED: u8 = 1;
const DRIVER: u8 = 2;
const DRIVER_OK: u8 = 4;
const FEATURES_OK: u8 = 8;

/// The feature bit without which a device is of the time before virtio 1.0.
const VERSION_1: u64 = 1 << 32;

/// MSI-X is enabled by this bit of the first register of its capability.
const MSI_X_ENABLE: u32 = 1 << 31;
/// Interrupts go to the processor with APIC number 0.
const MESSAGE_ADDRESS: u64 = 0xfee0_0000;

/// A device.
#[derive(Debug)]
pub struct Virtio {
    common: Registers,
    notify: Registers,
    notify_step: u32,
    /// The registers of its type.
    pub specific: Registers,
}

impl Virtio {
    /// Finds a device, resets it, agrees on `features` with it, and lets its interrupts go to the
    /// first processor.
    pub fn find(devices: &[u16], features: u64) -> Result<Self, &'static str> {
        let device = Device::find(VENDOR, devices).ok_or("hk.net without a virtio-net card")?;
        let addresses = device
            .assign_registers()
            .ok_or("the network card's registers are too large")?;
        let found = |kind| {
            device
                .capabilities(VENDOR_SPECIFIC)
                .find(|&at| device.read_byte(at + 3) == kind)
        };
        let registers = |kind| {
            let at = found(kind)?;
            let bar = *addresses.get(usize::from(device.read_byte(at + 4)))?;
            // SAFETY: the device says that its registers of this kind are there.
            unsafe { Registers::new(bar + u64::from(device.read(at + 8)), device.read(at + 12)) }
        };
        let missing = "the network card does not support virtio 1.0 with MSI-X";
        let virtio = Self {
            common: registers(COMMON).ok_or(missing)?,
            notify: registers(NOTIFY).ok_or(missing)?,
            notify_step: found(NOTIFY)
                .map(|at| device.read(at + 16))
                .ok_or(missing)?,
            specific: registers(SPECIFIC).ok_or(missing)?,
        };
        route_interrupt(device, &addresses).ok_or(missing)?;
        virtio.negotiate(features | VERSION_1)?;
        Ok(virtio)
    }

    fn negotiate(&self, features: u64) -> Result<(), &'static str> {
        let common = self.common;
        common.write(STATUS, 0_u8);
        while common.read::<u8>(STATUS) != 0 {
            core::hint::spin_loop();
        }
        common.write(STATUS, ACKNOWLEDGED | DRIVER);
        for half in [0, 1] {
            common.write::<u32>(FEATURES_SELECT, half);
            let offered = common.read::<u32>(FEATURES);
            let [low, high] = [features & 0xffff_ffff, features >> 32];
            let wanted = u32::try_from(if half == 0 { low } else { high }).unwrap_or(0);
            if offered & wanted != wanted {
                return Err("the network card lacks a feature");
            }
            common.write::<u32>(ACCEPTED_SELECT, half);
            common.write(ACCEPTED, wanted);
        }
        common.write(STATUS, ACKNOWLEDGED | DRIVER | FEATURES_OK);
        match common.read::<u8>(STATUS) & FEATURES_OK {
            0 => Err("the network card does not accept its features"),
            _ => Ok(()),
        }
    }

    /// Sets up the queue with this number, with the interrupt.
    pub fn queue(&self, number: u16) -> Result<Queue, &'static str> {
        let common = self.common;
        common.write(QUEUE_SELECT, number);
        let Layout {
            size,
            descriptors,
            available,
            used,
        } = Layout::reserve().ok_or("no memory for the network card's queues")?;
        if common.read::<u16>(QUEUE_SIZE) < size {
            return Err("the network card's queues are too short");
        }
        common.write(QUEUE_SIZE, size);
        common.write(QUEUE_VECTOR, 0_u16);
        if common.read::<u16>(QUEUE_VECTOR) != 0 {
            return Err("the network card has no room for an interrupt");
        }
        common.write_long(QUEUE_DESCRIPTORS, descriptors as u64);
        common.write_long(QUEUE_AVAILABLE, available as u64);
        common.write_long(QUEUE_USED, used as u64);
        let notify = usize::from(common.read::<u16>(QUEUE_NOTIFY)) * self.notify_step as usize;
        common.write(QUEUE_ENABLE, 1_u16);
        // SAFETY: the memory is reserved for this queue, and zero.
        Ok(unsafe { Queue::new(descriptors, available, used, number, (self.notify, notify)) })
    }

    /// The queues are ready.
    pub fn start(&self) {
        self.common
            .write(STATUS, ACKNOWLEDGED | DRIVER | FEATURES_OK | DRIVER_OK);
    }
}

/// The first entry of the device's MSI-X table raises [`NETWORK`] on the first processor.
fn route_interrupt(device: Device, addresses: &[u64; 6]) -> Option<()> {
    let at = device.capabilities(MSI_X).next()?;
    let table = device.read(at + 4);
    let bar = *addresses.get(usize::from(table.to_le_bytes()[0] & 7))?;
    // SAFETY: the device says that its table, with entries of 16 bytes, is there.
    let entry = unsafe { Registers::new(bar + u64::from(table & !7), 16) }?;
    entry.write_long(0, MESSAGE_ADDRESS);
    entry.write(8, u32::from(NETWORK));
    entry.write(12, 0_u32);
    device.write(at, device.read(at) | MSI_X_ENABLE);
    Some(())
}
