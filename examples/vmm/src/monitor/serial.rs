//! The serial port: `vm-superio`'s, with an interrupt, and a state that can be stored.

use kvm_ioctls::VmFd;
use serde::{Deserialize, Serialize};
use vm_superio::serial::{NoEvents, SerialState};
use vm_superio::{Serial, Trigger};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

use crate::Result;
use crate::monitor::console::Console;

/// The port's interrupt.
const INTERRUPT: u32 = 4;

/// Raises the interrupt in KVM's interrupt controller.
#[derive(Debug)]
struct Interrupt(EventFd);

impl Trigger for Interrupt {
    type E = std::io::Error;

    fn trigger(&self) -> std::io::Result<()> {
        self.0.write(1)
    }
}

#[derive(Debug)]
pub(crate) struct SerialPort {
    port: Serial<Interrupt, NoEvents, Console>,
    interrupt: EventFd,
}

/// The port's registers, and what the guest has not read yet.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct SavedSerialPort {
    baud_divisor: [u8; 2],
    interrupt_enable: u8,
    interrupt_identification: u8,
    line_control: u8,
    line_status: u8,
    modem_control: u8,
    modem_status: u8,
    scratch: u8,
    received: Vec<u8>,
}

impl SerialPort {
    pub(crate) fn new(vm: &VmFd, console: Console) -> Result<Self> {
        let interrupt = EventFd::new(EFD_NONBLOCK)?;
        vm.register_irqfd(&interrupt, INTERRUPT)?;
        Ok(Self {
            port: Serial::new(Interrupt(interrupt.try_clone()?), console),
            interrupt,
        })
    }

    pub(crate) fn read(&mut self, register: u8) -> u8 {
        self.port.read(register)
    }

    pub(crate) fn write(&mut self, register: u8, value: u8) -> Result<()> {
        self.port
            .write(register, value)
            .map_err(|error| format!("the serial port: {error:?}").into())
    }

    /// The port receives a line.
    pub(crate) fn receive(&mut self, line: &str) -> Result<()> {
        let taken = self
            .port
            .enqueue_raw_bytes(line.as_bytes())
            .map_err(|error| format!("the serial port: {error:?}"))?;
        if taken < line.len() {
            return Err("the serial port's queue is full".into());
        }
        Ok(())
    }

    pub(crate) fn save(&self) -> SavedSerialPort {
        let state = self.port.state();
        SavedSerialPort {
            baud_divisor: [state.baud_divisor_low, state.baud_divisor_high],
            interrupt_enable: state.interrupt_enable,
            interrupt_identification: state.interrupt_identification,
            line_control: state.line_control,
            line_status: state.line_status,
            modem_control: state.modem_control,
            modem_status: state.modem_status,
            scratch: state.scratch,
            received: state.in_buffer,
        }
    }

    pub(crate) fn load(&mut self, saved: SavedSerialPort) -> Result<()> {
        let [baud_divisor_low, baud_divisor_high] = saved.baud_divisor;
        let state = SerialState {
            baud_divisor_low,
            baud_divisor_high,
            interrupt_enable: saved.interrupt_enable,
            interrupt_identification: saved.interrupt_identification,
            line_control: saved.line_control,
            line_status: saved.line_status,
            modem_control: saved.modem_control,
            modem_status: saved.modem_status,
            scratch: saved.scratch,
            in_buffer: saved.received,
        };
        let interrupt = Interrupt(self.interrupt.try_clone()?);
        let console = self.port.writer().clone();
        self.port = Serial::from_state(&state, interrupt, NoEvents, console)
            .map_err(|error| format!("the serial port's state: {error:?}"))?;
        Ok(())
    }
}
