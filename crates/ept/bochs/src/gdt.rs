//! The descriptor table the hypervisor runs on. VMX wants the host to have a task register, so it
//! brings a task-state segment, of which nothing is used.

use alloc::boxed::Box;
use core::arch::asm;

/// Selector of 64-bit code.
pub const CODE: u16 = 0x08;
/// Selector of data.
pub const DATA: u16 = 0x10;
/// Selector of the task-state segment.
pub const TASK: u16 = 0x18;

/// What `lgdt` and `lidt` read.
#[repr(C, packed)]
pub struct TablePointer {
    limit: u16,
    base: u64,
}

impl TablePointer {
    /// Describes a table of 8-byte words.
    pub fn to(table: &'static [u64]) -> TablePointer {
        let limit = u16::try_from(table.len() * 8 - 1).unwrap_or(u16::MAX);
        TablePointer {
            limit,
            base: table.as_ptr().expose_provenance() as u64,
        }
    }
}

/// Where the tables are: the host's half of a VMCS repeats it.
#[derive(Clone, Copy, Debug)]
pub struct Segments {
    /// The descriptor table's address.
    pub gdt: u64,
    /// The task-state segment's address.
    pub task: u64,
}

/// Makes the table and loads it into every segment register.
pub fn load() -> Segments {
    const TASK_BYTES: u64 = 104;
    let task: &'static [u8] = Box::leak(Box::new([0_u8; 104]));
    let task = task.as_ptr().expose_provenance() as u64;
    let gdt: &'static [u64] = Box::leak(Box::new([
        0,
        0x00af_9b00_0000_ffff,
        0x00cf_9300_0000_ffff,
        // A 64-bit task-state segment, available; its base is spread over the descriptor.
        (TASK_BYTES - 1) | (task & 0xff_ffff) << 16 | 0x89 << 40 | (task >> 24 & 0xff) << 56,
        task >> 32,
    ]));
    let pointer = TablePointer::to(gdt);
    // SAFETY: the table is complete, stays for good, and describes the flat segments this code
    // runs on already; the far return goes to the next instruction.
    unsafe {
        asm!(
            "lgdt [{pointer}]",
            "push {code}",
            "lea {scratch}, [rip + 2f]",
            "push {scratch}",
            "retfq",
            "2:",
            "mov ds, {data:e}",
            "mov es, {data:e}",
            "mov ss, {data:e}",
            "ltr {task:x}",
            pointer = in(reg) &raw const pointer,
            code = in(reg) u64::from(CODE),
            data = in(reg) u64::from(DATA),
            task = in(reg) u64::from(TASK),
            scratch = out(reg) _,
        );
    }
    Segments {
        gdt: gdt.as_ptr().expose_provenance() as u64,
        task,
    }
}
