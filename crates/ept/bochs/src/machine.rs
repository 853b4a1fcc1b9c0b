//! A guest under the crate's tables: what a hypervisor does with the crate, and no more.

use crate::frame_pool::{POOL, Pool};
use crate::guest_program::{BYTES, LIST, Program};
use crate::memory::GUEST;
use crate::vmx::vcpu::{Exit, Host, Registers, Vcpu};
use crate::vmx::{capability, operation};
use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use core::cell::Cell;
use hikkoshi_ept::{
    Capabilities, ExitQualification, Frame, Gfn, GfnRange, Guest, Level, LogMethod, Mapping,
    PML_HEAD_INDEX, Processors, TlbFlush, View, ViolationOutcome,
};

/// Frames of the guest's memory.
pub const FRAMES: u64 = BYTES >> 12;
/// vCPUs that a guest may have.
const VCPUS: usize = 4;

/// A guest and its vCPUs.
#[derive(Debug)]
pub struct Machine {
    /// Its tables and its log.
    pub guest: Guest<&'static Pool>,
    /// Its vCPUs. All run on one processor, so one at a time.
    pub vcpus: Vec<Cpu>,
    host: Host,
    /// Times that translations were invalidated.
    pub invalidations: Cell<u64>,
    /// Instructions of the hypervisor between an exit and the next entry.
    pub handling: u64,
}

/// A vCPU: for VMX, and for the crate.
#[derive(Debug)]
pub struct Cpu {
    /// The VMCS and the registers.
    pub vmx: Vcpu,
    /// Its name in the crate.
    pub id: hikkoshi_ept::Vcpu,
    /// The view that it runs in.
    view: View,
}

/// What the processor can do, as the crate reads it.
pub fn capabilities() -> Capabilities {
    let found = Capabilities::from_msrs(
        capability::ept_capabilities(),
        capability::secondary(),
        capability::physical_bits(),
    );
    found.unwrap_or_else(|| crate::fail("the crate finds no use for this processor's tables"))
}

/// Guest frames from a first one on.
pub fn frames(first: u64, count: u64) -> GfnRange {
    GfnRange::from_len(Gfn::new(first), count)
}

impl Machine {
    /// A guest whose memory is mapped by leaves of at most this size, with one vCPU.
    pub fn new(host: Host, max_level: Level) -> Machine {
        let first = Frame::containing(GUEST.start as u64);
        let memory = Mapping {
            max_level,
            ..Mapping::ram(frames(0, FRAMES), first)
        };
        Machine::with(host, FRAMES, &memory)
    }

    /// A guest of this many frames, with this memory and one vCPU.
    pub fn with(host: Host, size: u64, memory: &Mapping) -> Machine {
        let guest = must(Guest::new(&POOL, size, VCPUS, capabilities()));
        must(guest.map(View::MAIN, memory));
        let mut machine = Machine {
            guest,
            vcpus: Vec::new(),
            host,
            invalidations: Cell::new(0),
            handling: 0,
        };
        // The frames may have been another guest's tables before.
        operation::invalidate(machine.pointer());
        machine.add_vcpu();
        machine
    }

    fn pointer(&self) -> u64 {
        self.guest.main_eptp().0
    }

    /// Has a vCPU run in another view from now on.
    pub fn enter_view(&mut self, number: usize, view: View) {
        let cpu = &mut self.vcpus[number];
        match self.guest.eptp(view) {
            Some(pointer) => cpu.vmx.set_ept_pointer(pointer.0),
            None => crate::fail("a vCPU is to enter a view that is not there"),
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

    /// Starts logging, or adds a range to what is logged.
    pub fn start(&self, method: LogMethod, range: GfnRange) {
        must(self.guest.start_log(method, range, self));
    }

    /// Stops logging a range.
    pub fn stop(&self, range: GfnRange) {
        must(self.guest.stop_log(range, self));
    }

    /// Takes the log of a range: the frames in it.
    pub fn take(&self, range: GfnRange) -> BTreeSet<u64> {
        let mut runs = Vec::new();
        must(self.guest.take_log(range, self, &mut |run| runs.push(run)));
        runs.iter()
            .flat_map(|run| run.iter())
            .map(Gfn::index)
            .collect()
    }

    /// How many pages of a range are in the log, left there.
    pub fn peek(&self, range: GfnRange) -> u64 {
        must(self.guest.count_dirty(range, self))
    }

    /// Sets a vCPU up to run a program.
    pub fn prepare(&mut self, number: usize, program: Program, registers: Registers) {
        let vmx = &mut self.vcpus[number].vmx;
        vmx.set_rip(program.address());
        vmx.registers = registers;
    }

    /// Sets a vCPU up to write a stamp by the list, from an entry on.
    pub fn prepare_list(&mut self, number: usize, first: usize, count: usize, stamp: u32) {
        let registers = Registers {
            rax: u64::from(stamp),
            rcx: count as u64,
            rsi: LIST + 4 * first as u64,
            ..Registers::default()
        };
        self.prepare(number, Program::WriteList, registers);
    }

    /// Runs a vCPU until its program is done, and handles its other exits.
    pub fn finish(&mut self, number: usize) {
        while let Some(exit) = self.step(number, None) {
            if exit == Exit::Vmcall {
                return;
            }
        }
    }

    /// Runs a vCPU for about so many instructions. Whether its program is done.
    pub fn run_for(&mut self, number: usize, instructions: u64) -> bool {
        let end = self.vcpus[number].vmx.guest_instructions + instructions;
        loop {
            // Other exits do not begin a new turn.
            let left = end.saturating_sub(self.vcpus[number].vmx.guest_instructions);
            match self.step(number, Some(left)) {
                Some(Exit::Vmcall) => return true,
                Some(Exit::PreemptionTimer) => return false,
                _ => {}
            }
        }
    }

    /// Runs a vCPU to its next exit, and handles that. Returns the exit.
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

    /// The size of the leaf that maps a frame.
    pub fn level(&self, frame: u64) -> Option<Level> {
        self.guest
            .lookup(View::MAIN, Gfn::new(frame))
            .map(|found| found.level)
    }
}

/// One processor, which is not in the guest while this code runs: its only translations are dropped by
/// one instruction, and every vCPU's index lies in its VMCS.
impl Processors for Machine {
    fn invalidate(&self, flush: &TlbFlush) {
        for pointer in self.guest.eptps(flush) {
            operation::invalidate(pointer.0);
            self.invalidations.set(self.invalidations.get() + 1);
        }
    }

    fn drain_pml(&self, drain: &dyn Fn(hikkoshi_ept::Vcpu, u16) -> u16) {
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

/// The value, or the end of the run.
fn must<T, E: core::fmt::Display>(result: Result<T, E>) -> T {
    result.unwrap_or_else(|error| crate::fail(error))
}
