//! The hypervisor's global descriptor table. VMX requires the host to have a task register, so the
//! table has a task-state segment, which is otherwise unused.

use alloc::boxed::Box;
use core::arch::asm;

/// Selector of the 64-bit code segment.
pub const CODE: u16 = 0x08;
/// Selector of the data segment.
pub const DATA: u16 = 0x10;
/// Selector of the task-state segment.
pub const TASK: u16 = 0x18;

/// The operand of `lgdt` and `lidt`.
#[repr(C, packed)]
pub struct TablePointer {
    limit: u16,
    base: u64,
}

impl TablePointer {
    /// Creates the operand for a table of 8-byte words.
    pub fn to(table: &'static [u64]) -> TablePointer {
        let limit = u16::try_from(table.len() * 8 - 1).unwrap_or(u16::MAX);
        TablePointer {
            limit,
            base: table.as_ptr().expose_provenance() as u64,
        }
    }
}

/// The addresses of the tables, for the host state of a VMCS.
#[derive(Clone, Copy, Debug)]
pub struct Segments {
    /// Address of the descriptor table.
    pub gdt: u64,
    /// Address of the task-state segment.
    pub task: u64,
}

/// Creates the table and loads it into all segment registers.
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
    // SAFETY: the table is complete, is never freed, and describes the flat segments that this code
    // already uses; the far return goes to the next instruction.
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
