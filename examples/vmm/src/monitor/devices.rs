//! The devices, by their I/O ports: a serial port, ACPI's timer, and the number of processors. None
//! of them writes to the guest's memory.

use std::time::Instant;

use kvm_ioctls::VmFd;
use serde::{Deserialize, Serialize};
use vm_superio::serial::{NoEvents, SerialState};
use vm_superio::{Serial, Trigger};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

use crate::Result;
use crate::monitor::console::Console;

/// Eight registers of a byte.
const SERIAL: u16 = 0x3f8;
const SERIAL_END: u16 = SERIAL + 8;
const SERIAL_INTERRUPT: u32 = 4;
/// QEMU's configuration device (`fw_cfg`), of which there is one item.
const CONFIGURATION_SELECTOR: u16 = 0x510;
const CONFIGURATION_DATA: u16 = 0x511;
const PROCESSORS: [u8; 2] = [5, 0];
/// ACPI's PM1a control register, and the bit that switches the machine off.
const POWER_CONTROL: u16 = 0x604;
const SLEEP_ENABLE: u8 = 1 << 5;
/// ACPI's timer, a counter of 24 bits: the guest measures its time-stamp counter by it.
const TIMER: u16 = 0x608;
const TIMER_HZ: u128 = 3_579_545;
const TIMER_MASK: u32 = (1 << 24) - 1;

#[derive(Debug)]
pub(crate) struct Devices {
    serial: Serial<Interrupt, NoEvents, Console>,
    interrupt: EventFd,
    /// What the timer counted at a time.
    timer: (u32, Instant),
    processors: u8,
    /// What is read next of the selected item; zeros follow.
    selected: u8,
}

/// The devices' state.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct SavedDevices {
    /// The registers in the order of `SerialState`, and what the guest has not read yet.
    serial: ([u8; 9], Vec<u8>),
    timer: u32,
    selected: u8,
}

/// Raises the serial port's interrupt in KVM's interrupt controller.
#[derive(Debug)]
struct Interrupt(EventFd);

impl Trigger for Interrupt {
    type E = std::io::Error;

    fn trigger(&self) -> std::io::Result<()> {
        self.0.write(1)
    }
}

impl Devices {
    pub(crate) fn new(vm: &VmFd, processors: u8, console: Console) -> Result<Self> {
        let interrupt = EventFd::new(EFD_NONBLOCK)?;
        vm.register_irqfd(&interrupt, SERIAL_INTERRUPT)?;
        Ok(Self {
            serial: Serial::new(Interrupt(interrupt.try_clone()?), console),
            interrupt,
            timer: (0, Instant::now()),
            processors,
            selected: 0,
        })
    }

    /// The serial port receives a line.
    pub(crate) fn type_line(&mut self, line: &str) -> Result<()> {
        let taken = self.serial.enqueue_raw_bytes(line.as_bytes());
        match taken.map_err(|error| format!("the serial port: {error:?}"))? {
            taken if taken < line.len() => Err("the serial port's queue is full".into()),
            _ => Ok(()),
        }
    }

    /// The guest reads from a port. Where there is no device, all bits are set.
    pub(crate) fn read(&mut self, port: u16, data: &mut [u8]) {
        data.fill(0xff);
        match (port, data) {
            (SERIAL..SERIAL_END, [byte]) => *byte = self.serial.read(register(port)),
            (CONFIGURATION_DATA, [byte]) => *byte = std::mem::take(&mut self.selected),
            (TIMER, data) => {
                for (byte, value) in data.iter_mut().zip(self.timer().to_le_bytes()) {
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
            (SERIAL..SERIAL_END, [byte]) => {
                let written = self.serial.write(register(port), *byte);
                written.map_err(|error| format!("the serial port: {error:?}"))?;
            }
            (CONFIGURATION_SELECTOR, item) => {
                self.selected = if item == PROCESSORS {
                    self.processors
                } else {
                    0
                };
            }
            (POWER_CONTROL, [_, high]) if high & SLEEP_ENABLE != 0 => {
                return Err("the guest has switched the machine off".into());
            }
            _ => {}
        }
        Ok(())
    }

    #[allow(clippy::cast_possible_truncation)] // the mask fits
    fn timer(&self) -> u32 {
        let (base, since) = self.timer;
        let ticks = since.elapsed().as_nanos() * TIMER_HZ / 1_000_000_000;
        (u128::from(base) + ticks) as u32 & TIMER_MASK
    }

    pub(crate) fn save(&self) -> SavedDevices {
        let state = self.serial.state();
        let registers = [
            state.baud_divisor_low,
            state.baud_divisor_high,
            state.interrupt_enable,
            state.interrupt_identification,
            state.line_control,
            state.line_status,
            state.modem_control,
            state.modem_status,
            state.scratch,
        ];
        SavedDevices {
            serial: (registers, state.in_buffer),
            timer: self.timer(),
            selected: self.selected,
        }
    }

    pub(crate) fn load(&mut self, saved: SavedDevices) -> Result<()> {
        let (registers, in_buffer) = saved.serial;
        let [
            low,
            high,
            enable,
            identification,
            line,
            line_status,
            modem,
            modem_status,
            scratch,
        ] = registers;
        let state = SerialState {
            baud_divisor_low: low,
            baud_divisor_high: high,
            interrupt_enable: enable,
            interrupt_identification: identification,
            line_control: line,
            line_status,
            modem_control: modem,
            modem_status,
            scratch,
            in_buffer,
        };
        let interrupt = Interrupt(self.interrupt.try_clone()?);
        let console = self.serial.writer().clone();
        self.serial = Serial::from_state(&state, interrupt, NoEvents, console)
            .map_err(|error| format!("the serial port's state: {error:?}"))?;
        self.timer = (saved.timer, Instant::now());
        self.selected = saved.selected;
        Ok(())
    }
}

#[allow(clippy::cast_possible_truncation)] // below eight
fn register(port: u16) -> u8 {
    (port - SERIAL) as u8
}
