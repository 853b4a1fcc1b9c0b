//! PCI: the configuration space by I/O ports, and the addresses of a device's registers.
//!
//! qboot gives devices no addresses. So this guest chooses them, below the I/O APIC, where neither
//! of QEMU's machines has memory.

use crate::port;

const ADDRESS: u16 = 0xcf8;
const DATA: u16 = 0xcfc;

const COMMAND: u8 = 0x04;
const COMMAND_MEMORY: u32 = 1 << 1;
const COMMAND_MASTER: u32 = 1 << 2;
const FIRST_BAR: u8 = 0x10;
const CAPABILITIES: u8 = 0x34;

/// Where registers are put, one after the other.
const REGISTERS: u64 = 0xf000_0000;
const REGISTERS_END: u64 = 0xf800_0000;

/// A device of bus 0.
#[derive(Clone, Copy, Debug)]
pub struct Device {
    slot: u32,
}

impl Device {
    /// The first device with one of these numbers.
    pub fn find(vendor: u16, devices: &[u16]) -> Option<Self> {
        (0..32).map(|slot| Self { slot }).find(|device| {
            let [vendor_low, vendor_high, device_low, device_high] = device.read(0).to_le_bytes();
            u16::from_le_bytes([vendor_low, vendor_high]) == vendor
                && devices.contains(&u16::from_le_bytes([device_low, device_high]))
        })
    }

    /// Reads 32 bits of its configuration.
    pub fn read(self, at: u8) -> u32 {
        // SAFETY: selects and reads a register of the configuration, which has no effect.
        unsafe {
            port::write_double(ADDRESS, self.address(at));
            port::read_double(DATA)
        }
    }

    /// Reads one byte.
    pub fn read_byte(self, at: u8) -> u8 {
        self.read(at).to_le_bytes()[usize::from(at % 4)]
    }

    /// Writes 32 bits.
    pub fn write(self, at: u8, value: u32) {
        // SAFETY: the caller writes what PCI defines. Interrupted between the two, another task
        // does not use these ports: only the network's task does.
        unsafe {
            port::write_double(ADDRESS, self.address(at));
            port::write_double(DATA, value);
        }
    }

    fn address(self, at: u8) -> u32 {
        1 << 31 | self.slot << 11 | u32::from(at & 0xfc)
    }

    /// The offsets of its capabilities with this number.
    pub fn capabilities(self, number: u8) -> impl Iterator<Item = u8> {
        let next = move |at: u8| Some(self.read_byte(at) & 0xfc).filter(|&at| at != 0);
        core::iter::successors(next(CAPABILITIES), move |&at| next(at + 1))
            // A list that loops ends nowhere.
            .take(64)
            .filter(move |&at| self.read_byte(at) == number)
    }

    /// Gives its registers in memory addresses, and lets it use memory. Returns the addresses by
    /// number.
    pub fn assign_registers(self) -> Option<[u64; 6]> {
        let command = self.read(COMMAND) & 0xffff;
        self.write(COMMAND, command & !COMMAND_MEMORY);
        let mut addresses = [0; 6];
        let mut free = REGISTERS;
        let mut number = 0;
        while number < 6 {
            let at = FIRST_BAR + number * 4;
            self.write(at, u32::MAX);
            let kind = self.read(at);
            if kind == 0 || kind & 1 != 0 {
                // None, or I/O ports, which are not used.
                number += 1;
                continue;
            }
            // Every register fits below 4 GiB, so the upper half of a size is all ones.
            let size = u64::from(!(kind & !0xf)) + 1;
            let address = free.next_multiple_of(size);
            free = address + size;
            if free > REGISTERS_END {
                return None;
            }
            self.write(at, u32::try_from(address).ok()?);
            addresses[usize::from(number)] = address;
            let is_64_bit = kind & 0x6 == 0x4;
            if is_64_bit {
                self.write(at + 4, 0);
            }
            number += if is_64_bit { 2 } else { 1 };
        }
        self.write(COMMAND, command | COMMAND_MEMORY | COMMAND_MASTER);
        Some(addresses)
    }
}
