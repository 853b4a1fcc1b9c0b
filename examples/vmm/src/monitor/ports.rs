//! The devices, by their I/O ports. None of them writes to the guest's memory.

use kvm_ioctls::VmFd;
use serde::{Deserialize, Serialize};

use crate::Result;
use crate::monitor::acpi_timer::{AcpiTimer, SavedAcpiTimer};
use crate::monitor::configuration::Configuration;
use crate::monitor::console::Console;
use crate::monitor::serial::{SavedSerialPort, SerialPort};

/// Eight registers of a byte.
const SERIAL: u16 = 0x3f8;
const SERIAL_END: u16 = SERIAL + 8;
const CONFIGURATION_SELECTOR: u16 = 0x510;
const CONFIGURATION_DATA: u16 = 0x511;
/// ACPI's PM1a control register, and the bit that switches the machine off.
const POWER_CONTROL: u16 = 0x604;
const SLEEP_ENABLE: u8 = 1 << 5;
const TIMER: u16 = 0x608;

#[derive(Debug)]
pub(crate) struct Ports {
    serial: SerialPort,
    timer: AcpiTimer,
    configuration: Configuration,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct SavedPorts {
    serial: SavedSerialPort,
    timer: SavedAcpiTimer,
    configuration: Configuration,
}

impl Ports {
    pub(crate) fn new(vm: &VmFd, processors: u8, console: Console) -> Result<Self> {
        Ok(Self {
            serial: SerialPort::new(vm, console)?,
            timer: AcpiTimer::default(),
            configuration: Configuration::new(processors),
        })
    }

    pub(crate) fn serial(&mut self) -> &mut SerialPort {
        &mut self.serial
    }

    /// The guest reads from a port. Where there is no device, all bits are set.
    pub(crate) fn read(&mut self, port: u16, data: &mut [u8]) {
        data.fill(0xff);
        match (port, data) {
            (SERIAL..SERIAL_END, [byte]) => *byte = self.serial.read(offset(port)),
            (CONFIGURATION_DATA, [byte]) => *byte = self.configuration.read(),
            (TIMER, data) => {
                for (byte, value) in data.iter_mut().zip(self.timer.read().to_le_bytes()) {
                    *byte = value;
                }
            }
            _ => {}
        }
    }

    /// The guest writes to a port.
    ///
    /// # Errors
    ///
    /// The guest has switched the machine off.
    pub(crate) fn write(&mut self, port: u16, data: &[u8]) -> Result<()> {
        match (port, data) {
            (SERIAL..SERIAL_END, [byte]) => self.serial.write(offset(port), *byte),
            (CONFIGURATION_SELECTOR, [low, high]) => {
                self.configuration.select(u16::from_le_bytes([*low, *high]));
                Ok(())
            }
            (POWER_CONTROL, [_, high]) if high & SLEEP_ENABLE != 0 => {
                Err("the guest has switched the machine off".into())
            }
            _ => Ok(()),
        }
    }

    pub(crate) fn save(&self) -> SavedPorts {
        SavedPorts {
            serial: self.serial.save(),
            timer: self.timer.save(),
            configuration: self.configuration,
        }
    }

    pub(crate) fn load(&mut self, saved: SavedPorts) -> Result<()> {
        self.timer = AcpiTimer::load(saved.timer);
        self.configuration = saved.configuration;
        self.serial.load(saved.serial)
    }
}

#[allow(clippy::cast_possible_truncation)] // below eight
fn offset(port: u16) -> u8 {
    (port - SERIAL) as u8
}
