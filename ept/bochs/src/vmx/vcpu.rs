//! A vCPU: its VMCS, its registers, and its exits.
//!
//! The guest runs 32-bit code with flat segments and without paging ("unrestricted guest"). Its
//! linear addresses are guest-physical addresses, and only its program accesses memory. So the
//! expected content of a log is known exactly.

use super::capability::{self, Controls, controls};
pub use super::entry::Registers;
use super::entry::{vmx_enter, vmx_exit};
use super::field::{self, Segment};
use super::operation::{Vmcs, read, write};
use crate::cpu;
use crate::gdt::{self, Segments};

/// The values for the host state of every VMCS.
#[derive(Clone, Copy, Debug)]
pub struct Host {
    /// Descriptor table and task-state segment.
    pub segments: Segments,
    /// Address of the interrupt descriptor table.
    pub idt: u64,
}

/// Why the guest exited (SDM vol. 3D, appendix C).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// VMCALL: the guest's program has finished. Reason 18.
    Vmcall,
    /// EPT violation. Reason 48.
    Violation {
        /// Guest-physical address.
        address: u64,
        /// Bits 0 to 2: read, write, fetch; bits 3 to 5: what the entries permit.
        qualification: u64,
    },
    /// EPT misconfiguration. Reason 49.
    Misconfiguration {
        /// Guest-physical address.
        address: u64,
    },
    /// Page-modification log full. Reason 62.
    PmlFull,
    /// The VMX-preemption timer expired ([`Vcpu::run_for`]). Reason 52.
    PreemptionTimer,
    /// Any other exit; none is expected.
    Other {
        /// The basic exit reason.
        reason: u64,
    },
}

/// A vCPU.
#[derive(Debug)]
pub struct Vcpu {
    vmcs: Vmcs,
    launched: bool,
    /// The general registers at the next entry.
    pub registers: Registers,
    /// Number of exits so far.
    pub exits: Exits,
    /// Total number of instructions (and so of ticks) between entries and exits.
    pub guest_instructions: u64,
}

/// Number of exits by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Exits {
    /// [`Exit::Violation`].
    pub violations: u64,
    /// [`Exit::PmlFull`].
    pub pml_full: u64,
    /// [`Exit::Vmcall`].
    pub vmcalls: u64,
}

impl Vcpu {
    /// Creates a vCPU that runs with these tables, without logging; [`Vcpu::set_pml_log`] enables
    /// it.
    pub fn new(host: Host, ept_pointer: u64) -> Vcpu {
        let vmcs = Vmcs::new();
        write_controls();
        write_host(host);
        write_guest();
        write(field::EPT_POINTER, ept_pointer);
        Vcpu {
            vmcs,
            launched: false,
            registers: Registers::default(),
            exits: Exits::default(),
            guest_instructions: 0,
        }
    }

    /// Switches to other tables.
    pub fn set_ept_pointer(&self, pointer: u64) {
        self.vmcs.load();
        write(field::EPT_POINTER, pointer);
    }

    /// Enables page-modification logging into the frame at this address, starting at this index;
    /// `None` disables it.
    pub fn set_pml_log(&self, log: Option<(u64, u16)>) {
        self.vmcs.load();
        let secondary = read(field::SECONDARY_CONTROLS);
        match log {
            Some((address, index)) => {
                write(field::PML_ADDRESS, address);
                write(field::PML_INDEX, u64::from(index));
                write(
                    field::SECONDARY_CONTROLS,
                    secondary | u64::from(capability::PML),
                );
            }
            None => write(
                field::SECONDARY_CONTROLS,
                secondary & !u64::from(capability::PML),
            ),
        }
    }

    /// Returns the PML index, as the processor left it.
    pub fn pml_index(&self) -> u16 {
        self.vmcs.load();
        u16::try_from(read(field::PML_INDEX)).unwrap_or(u16::MAX)
    }

    /// Sets the PML index.
    pub fn set_pml_index(&self, index: u16) {
        self.vmcs.load();
        write(field::PML_INDEX, u64::from(index));
    }

    /// Enables the guest's paging: 32-bit, with 4 MiB pages, with the page directory at this
    /// guest-physical address.
    pub fn enable_paging(&self, directory: u64) {
        const PG: u64 = 1 << 31;
        const PSE: u64 = 1 << 4;
        self.vmcs.load();
        write(field::GUEST_CR0, read(field::GUEST_CR0) | PG);
        write(field::GUEST_CR4, read(field::GUEST_CR4) | PSE);
        write(field::GUEST_CR3, directory);
    }

    /// Returns the guest's instruction pointer.
    pub fn rip(&self) -> u64 {
        self.vmcs.load();
        read(field::GUEST_RIP)
    }

    /// Sets the guest's instruction pointer.
    pub fn set_rip(&self, address: u64) {
        self.vmcs.load();
        write(field::GUEST_RIP, address);
    }

    /// Runs until the next exit.
    pub fn run(&mut self) -> Exit {
        self.vmcs.load();
        let pin = read(field::PIN_CONTROLS);
        write(field::PIN_CONTROLS, pin & !u64::from(capability::TIMER));
        self.enter()
    }

    /// Runs until the next exit, but for at most about this many instructions: until the
    /// VMX-preemption timer, which counts a fraction of the time-stamp counter, reaches zero.
    pub fn run_for(&mut self, instructions: u64) -> Exit {
        self.vmcs.load();
        let pin = read(field::PIN_CONTROLS);
        write(field::PIN_CONTROLS, pin | u64::from(capability::TIMER));
        write(
            field::PREEMPTION_TIMER,
            instructions >> capability::timer_shift(),
        );
        self.enter()
    }

    fn enter(&mut self) -> Exit {
        let entered = cpu::instructions();
        // SAFETY: the VMCS directs exits to `vmx_exit`. The guest accesses its own memory; where
        // its tables map more (src/checks/superpages.rs), its programs write only to the addresses
        // they are given.
        let failed = unsafe { vmx_enter(&mut self.registers, u64::from(self.launched)) };
        self.guest_instructions += cpu::instructions() - entered;
        if failed != 0 {
            crate::fail(format_args!(
                "VM entry failed: VM-instruction error {}",
                read(field::INSTRUCTION_ERROR)
            ));
        }
        self.launched = true;
        self.exit()
    }

    /// Reads and counts the exit.
    fn exit(&mut self) -> Exit {
        const ENTRY_FAILED: u64 = 1 << 31;
        let reason = read(field::EXIT_REASON);
        if reason & ENTRY_FAILED != 0 {
            crate::fail(format_args!(
                "VM entry failed, invalid guest state: exit reason {reason:#x}, qualification {:#x}",
                read(field::EXIT_QUALIFICATION)
            ));
        }
        match reason & 0xffff {
            18 => {
                self.exits.vmcalls += 1;
                let length = read(field::EXIT_INSTRUCTION_LENGTH);
                write(field::GUEST_RIP, read(field::GUEST_RIP) + length);
                Exit::Vmcall
            }
            48 => {
                self.exits.violations += 1;
                Exit::Violation {
                    address: read(field::GUEST_PHYSICAL_ADDRESS),
                    qualification: read(field::EXIT_QUALIFICATION),
                }
            }
            49 => Exit::Misconfiguration {
                address: read(field::GUEST_PHYSICAL_ADDRESS),
            },
            52 => Exit::PreemptionTimer,
            62 => {
                self.exits.pml_full += 1;
                Exit::PmlFull
            }
            reason => Exit::Other { reason },
        }
    }
}

fn write_controls() {
    write(field::PIN_CONTROLS, controls(Controls::Pin, 0));
    write(
        field::PRIMARY_CONTROLS,
        controls(
            Controls::Primary,
            capability::SECONDARY_COUNT | capability::HLT_EXITS,
        ),
    );
    write(
        field::SECONDARY_CONTROLS,
        controls(
            Controls::Secondary,
            capability::EPT | capability::UNRESTRICTED,
        ),
    );
    write(
        field::EXIT_CONTROLS,
        controls(Controls::Exit, capability::HOST_64 | capability::EXIT_EFER),
    );
    write(
        field::ENTRY_CONTROLS,
        controls(Controls::Entry, capability::ENTRY_EFER),
    );
    write(field::EXCEPTION_BITMAP, 0xffff_ffff);
    write(field::LINK_POINTER, u64::MAX);
}

fn write_host(host: Host) {
    write(field::HOST_CR0, cpu::cr0());
    write(field::HOST_CR3, cpu::cr3());
    write(field::HOST_CR4, cpu::cr4());
    write(field::HOST_CS, u64::from(gdt::CODE));
    for data in [field::HOST_ES, field::HOST_SS, field::HOST_DS] {
        write(data, u64::from(gdt::DATA));
    }
    write(field::HOST_FS, 0);
    write(field::HOST_GS, 0);
    write(field::HOST_TR, u64::from(gdt::TASK));
    write(field::HOST_TR_BASE, host.segments.task);
    write(field::HOST_GDTR_BASE, host.segments.gdt);
    write(field::HOST_IDTR_BASE, host.idt);
    // SAFETY: this register exists in every processor with long mode.
    write(field::HOST_EFER, unsafe { cpu::read_msr(cpu::EFER) });
    write(
        field::HOST_RIP,
        (&raw const vmx_exit).expose_provenance() as u64,
    );
}

/// Flat 32-bit segments, ring 0, paging off.
fn write_guest() {
    const CODE: u64 = 0xc09b;
    const DATA: u64 = 0xc093;
    const BUSY_TASK: u64 = 0x8b;
    const UNUSABLE: u64 = 0x1_0000;
    for segment in Segment::ALL {
        let (selector, access, limit) = match segment {
            Segment::CS => (0x08, CODE, 0xffff_ffff),
            Segment::LDTR => (0, UNUSABLE, 0),
            Segment::TR => (0x18, BUSY_TASK, 0x67),
            _ => (0x10, DATA, 0xffff_ffff),
        };
        write(segment.selector(), selector);
        write(segment.access(), access);
        write(segment.limit(), limit);
        write(segment.base(), 0);
    }
    write(field::GUEST_GDTR_LIMIT, 0);
    write(field::GUEST_IDTR_LIMIT, 0);
    write(field::GUEST_INTERRUPTIBILITY, 0);
    write(field::GUEST_ACTIVITY, 0);
    const PE_ET_NE: u64 = 0x31;
    write(field::GUEST_CR0, PE_ET_NE);
    write(field::GUEST_CR3, 0);
    const VMXE: u64 = 1 << 13;
    write(field::GUEST_CR4, VMXE);
    write(field::GUEST_EFER, 0);
    write(field::GUEST_DR7, 0x400);
    write(field::GUEST_RSP, 0);
    write(field::GUEST_RFLAGS, 2);
}
