//! A minimal hypervisor: a guest whose tables the crate manages.

use crate::frame_pool::{POOL, Pool};
use crate::guest_program::{BYTES, LIST, Program};
use crate::memory::GUEST;
use crate::vmx::vcpu::{Exit, Host, Registers, Vcpu};
use crate::vmx::{capability, operation};
use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use core::cell::Cell;
use hikkoshi_ept::{
    Capabilities, ExitQualification, Gfn, GfnRange, Guest, HostFrame, Level, LogMethod, Mapping,
    PML_HEAD_INDEX, Processors, TlbFlush, View, ViolationOutcome,
};

/// Number of frames of the guest's memory.
pub const FRAMES: u64 = BYTES >> 12;
/// Maximum number of vCPUs of a guest.
const VCPUS: usize = 4;

/// A guest and its vCPUs.
#[derive(Debug)]
pub struct Machine {
    /// The guest's tables and log.
    pub guest: Guest<&'static Pool>,
    /// The vCPUs. All run on one processor, one at a time.
    pub vcpus: Vec<Cpu>,
    host: Host,
    /// Number of TLB invalidations.
    pub invalidations: Cell<u64>,
    /// Number of times that the page-modification logs of all vCPUs were drained.
    pub drains: Cell<u64>,
    /// Instructions of the hypervisor between exits and entries.
    pub handling: u64,
}

/// A vCPU.
#[derive(Debug)]
pub struct Cpu {
    /// The VMCS and the registers.
    pub vmx: Vcpu,
    /// The crate's handle of the vCPU.
    pub id: hikkoshi_ept::Vcpu,
    /// The view in which the vCPU runs.
    view: View,
}

/// Returns the processor's features, as decoded by the crate.
pub fn capabilities() -> Capabilities {
    let found = Capabilities::from_msrs(
        capability::ept_capabilities(),
        capability::secondary(),
        capability::physical_bits(),
    );
    found.unwrap_or_else(|| crate::fail("the crate does not support this processor"))
}

/// Returns the range of `count` guest frames from `first` on.
pub fn frames(first: u64, count: u64) -> GfnRange {
    GfnRange::from_len(Gfn::new(first), count)
}

impl Machine {
    /// Creates a guest with one vCPU, whose memory is mapped by leaves of at most this size.
    pub fn new(host: Host, max_level: Level) -> Machine {
        let first = HostFrame::containing(GUEST.start as u64);
        let memory = Mapping {
            max_level,
            ..Mapping::ram(frames(0, FRAMES), first)
        };
        Machine::with(host, FRAMES, &memory)
    }

    /// Creates a guest of `size` frames with this memory and one vCPU.
    pub fn with(host: Host, size: u64, memory: &Mapping) -> Machine {
        let guest = must(Guest::new(&POOL, size, VCPUS, capabilities()));
        must(guest.map(View::MAIN, memory));
        let mut machine = Machine {
            guest,
            vcpus: Vec::new(),
            host,
            invalidations: Cell::new(0),
            drains: Cell::new(0),
            handling: 0,
        };
        // The frames may have been tables of a previous guest.
        operation::invalidate(machine.pointer());
        machine.add_vcpu();
        machine
    }

    fn pointer(&self) -> u64 {
        self.guest.main_eptp().0
    }

    /// Switches a vCPU to another view.
    pub fn enter_view(&mut self, number: usize, view: View) {
        let cpu = &mut self.vcpus[number];
        match self.guest.eptp(view) {
            Some(pointer) => cpu.vmx.set_ept_pointer(pointer.0),
            None => crate::fail("a vCPU cannot enter a view that does not exist"),
        }
        cpu.view = view;
    }

    /// Adds a vCPU, also while logging is on.
    pub fn add_vcpu(&mut self) {
        let id = must(self.guest.add_vcpu());
        let vmx = Vcpu::new(self.host, self.pointer());
        if let Some(log) = self.guest.pml_address(id) {
            vmx.set_pml_log(Some((log.address(), PML_HEAD_INDEX)));
        }
        let view = View::MAIN;
        self.vcpus.push(Cpu { vmx, id, view });
    }

    /// Removes the last vCPU.
    pub fn remove_vcpu(&mut self) {
        if let Some(cpu) = self.vcpus.pop() {
            self.guest.remove_vcpu(cpu.id, cpu.vmx.pml_index());
        }
    }

    /// Starts logging, or adds a range to the log.
    pub fn start(&self, method: LogMethod, range: GfnRange) {
        must(self.guest.start_log(method, range, self));
    }

    /// Stops logging a range.
    pub fn stop(&self, range: GfnRange) {
        must(self.guest.stop_log(range, self));
    }

    /// Takes the log of a range; returns the dirty frames.
    pub fn take(&self, range: GfnRange) -> BTreeSet<u64> {
        let mut runs = Vec::new();
        must(self.guest.take_log(range, self, &mut |run| runs.push(run)));
        runs.iter()
            .flat_map(|run| run.iter())
            .map(Gfn::index)
            .collect()
    }

    /// Returns the number of pages of a range that are in the log, without taking them.
    pub fn peek(&self, range: GfnRange) -> u64 {
        must(self.guest.count_dirty(range, self))
    }

    /// Prepares a vCPU to run a program.
    pub fn prepare(&mut self, number: usize, program: Program, registers: Registers) {
        let vmx = &mut self.vcpus[number].vmx;
        vmx.set_rip(program.address());
        vmx.registers = registers;
    }

    /// Prepares a vCPU to write `stamp` to `count` addresses of the list, from entry `first` on.
    pub fn prepare_list(&mut self, number: usize, first: usize, count: usize, stamp: u32) {
        let registers = Registers {
            rax: u64::from(stamp),
            rcx: count as u64,
            rsi: LIST + 4 * first as u64,
            ..Registers::default()
        };
        self.prepare(number, Program::WriteList, registers);
    }

    /// Runs a vCPU until its program has finished, and handles its other exits.
    pub fn finish(&mut self, number: usize) {
        while let Some(exit) = self.step(number, None) {
            if exit == Exit::Vmcall {
                return;
            }
        }
    }

    /// Runs a vCPU for about this many instructions. Returns whether its program has finished.
    pub fn run_for(&mut self, number: usize, instructions: u64) -> bool {
        let end = self.vcpus[number].vmx.guest_instructions + instructions;
        loop {
            // Other exits do not start a new turn.
            let left = end.saturating_sub(self.vcpus[number].vmx.guest_instructions);
            match self.step(number, Some(left)) {
                Some(Exit::Vmcall) => return true,
                Some(Exit::PreemptionTimer) => return false,
                _ => {}
            }
        }
    }

    /// Runs a vCPU to its next exit, handles the exit and returns it.
    pub fn step(&mut self, number: usize, instructions: Option<u64>) -> Option<Exit> {
        let vmx = &mut self.vcpus.get_mut(number)?.vmx;
        let exit = match instructions {
            None => vmx.run(),
            Some(count) => vmx.run_for(count),
        };
        let from = crate::cpu::instructions();
        self.handle(number, exit);
        self.handling += crate::cpu::instructions() - from;
        Some(exit)
    }

    fn handle(&self, number: usize, exit: Exit) {
        match exit {
            Exit::Vmcall | Exit::PreemptionTimer => {}
            Exit::Violation {
                address,
                qualification,
            } => {
                let why = ExitQualification(qualification);
                match self
                    .guest
                    .handle_ept_violation(self.vcpus[number].view, address, why)
                {
                    ViolationOutcome::Resume => {}
                    other => crate::fail(format_args!(
                        "a violation at {address:#x}, qualification {qualification:#x}: {other:?}"
                    )),
                }
            }
            Exit::PmlFull => {
                let cpu = &self.vcpus[number];
                cpu.vmx
                    .set_pml_index(self.guest.drain_pml(cpu.id, cpu.vmx.pml_index()));
            }
            Exit::Misconfiguration { address } => {
                let found = self.guest.lookup(View::MAIN, Gfn::containing(address));
                crate::fail(format_args!(
                    "the entry for {address:#x} is misconfigured: {found:?}"
                ))
            }
            Exit::Other { reason } => {
                crate::fail(format_args!("the guest exited with reason {reason}"))
            }
        }
    }

    /// Returns the size of the leaf that maps a frame.
    pub fn level(&self, frame: u64) -> Option<Level> {
        self.guest
            .lookup(View::MAIN, Gfn::new(frame))
            .map(|found| found.level)
    }
}

/// There is one processor, which is not in the guest while this code runs. One instruction
/// invalidates its translations, and every vCPU's PML index is in its VMCS.
impl Processors for Machine {
    fn invalidate(&self, flush: &TlbFlush) {
        for pointer in self.guest.eptps(flush) {
            operation::invalidate(pointer.0);
            self.invalidations.set(self.invalidations.get() + 1);
        }
    }

    fn drain_pml(&self, drain: &dyn Fn(hikkoshi_ept::Vcpu, u16) -> u16) {
        self.drains.set(self.drains.get() + 1);
        for cpu in &self.vcpus {
            cpu.vmx.set_pml_index(drain(cpu.id, cpu.vmx.pml_index()));
        }
    }

    fn set_pml(&self, on: bool) {
        for cpu in &self.vcpus {
            let log = self.guest.pml_address(cpu.id).filter(|_| on);
            cpu.vmx
                .set_pml_log(log.map(|frame| (frame.address(), PML_HEAD_INDEX)));
        }
    }
}

/// Returns the value, or ends the run.
fn must<T, E: core::fmt::Display>(result: Result<T, E>) -> T {
    result.unwrap_or_else(|error| crate::fail(error))
}
