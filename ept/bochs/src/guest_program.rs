//! The guest: a few lines of 32-bit code, and its memory.
//!
//! The guest's address 0 is the first byte of [`memory::GUEST`]. Its programs are in its second
//! page; the lists of addresses to write to begin at [`LIST`].

use crate::memory;
use crate::vmx::vcpu::Registers;

/// Size of the guest's memory in bytes.
pub const BYTES: u64 = (memory::GUEST.end - memory::GUEST.start) as u64;
/// Address of the guest's programs.
pub const CODE: u64 = 0x1000;
/// Address of the list of addresses; its size is [`LIST_BYTES`].
pub const LIST: u64 = 0x10_0000;
/// Size of the list in bytes.
pub const LIST_BYTES: u64 = 0x10_0000;
/// Start of the write area: the programs write only from here on.
pub const WRITE_AREA: u64 = 0x20_0000;

// The guest's programs. Each ends with a VMCALL, and would start again after it.
core::arch::global_asm!(
    r#"
    .section .rodata.guest, "a"
    .code32
    .global guest_code_start
    .global guest_write_list
    .global guest_write_stride
    .global guest_read_stride
    .global guest_work_list
    .global guest_code_end
guest_code_start:
guest_write_list:                   // esi: list of addresses; ecx: how many; eax: what to write
    mov ebx, [esi]
    mov [ebx], eax
    add esi, 4
    dec ecx
    jnz guest_write_list
    vmcall
    jmp guest_write_list
guest_write_stride:                 // edi: first address; edx: step; ecx: how many; eax: what
    mov [edi], eax
    add edi, edx
    dec ecx
    jnz guest_write_stride
    vmcall
    jmp guest_write_stride
guest_read_stride:                  // the same, reading
    mov eax, [edi]
    add edi, edx
    dec ecx
    jnz guest_read_stride
    vmcall
    jmp guest_read_stride
guest_work_list:                    // the same as guest_write_list, after edx rounds of other work
    mov edi, edx
2:
    dec edi
    jnz 2b
    mov ebx, [esi]
    mov [ebx], eax
    add esi, 4
    dec ecx
    jnz guest_work_list
    vmcall
    jmp guest_work_list
guest_code_end:
    .code64
    .text
    "#
);

unsafe extern "C" {
    static guest_code_start: u8;
    static guest_write_list: u8;
    static guest_write_stride: u8;
    static guest_read_stride: u8;
    static guest_work_list: u8;
    static guest_code_end: u8;
}

/// A program of the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    /// Writes to each address of the list.
    WriteList,
    /// Writes at equal distances, without reading anything.
    WriteStride,
    /// Reads at equal distances.
    ReadStride,
    /// Writes to each address of the list, and executes other instructions before each write.
    WorkList,
}

impl Program {
    /// Returns the guest-physical address of the program's first instruction.
    pub fn address(self) -> u64 {
        let start = &raw const guest_code_start;
        let entry = match self {
            Program::WriteList => &raw const guest_write_list,
            Program::WriteStride => &raw const guest_write_stride,
            Program::ReadStride => &raw const guest_read_stride,
            Program::WorkList => &raw const guest_work_list,
        };
        CODE + (entry.addr() - start.addr()) as u64
    }
}

/// Returns the number of addresses of its list that a vCPU running [`Program::WriteList`] has
/// written to.
///
/// Exact at every instruction, because the write comes before the step to the next address.
pub fn written(registers: &Registers, instruction: u64) -> usize {
    const WRITE: u64 = 2; // the first instruction has two bytes
    const AFTER_WRITE: u64 = 4; // so has the write
    const AFTER_STEP: u64 = 7; // the step has three
    let entries = (registers.rsi - LIST) / 4;
    let place = instruction - Program::WriteList.address();
    let done = entries + u64::from(place > WRITE && place < AFTER_STEP);
    debug_assert!(place <= WRITE || place >= AFTER_WRITE);
    usize::try_from(done).unwrap_or(usize::MAX)
}

/// Returns the hypervisor's pointer to a byte of the guest's memory.
fn host_pointer(address: u64) -> *mut u8 {
    assert!(
        address < BYTES,
        "address {address:#x} is outside the guest's memory"
    );
    let offset = usize::try_from(address).unwrap_or(usize::MAX);
    core::ptr::with_exposed_provenance_mut(memory::GUEST.start + offset)
}

/// Copies the programs into the guest's memory.
pub fn load() {
    let start = &raw const guest_code_start;
    let bytes = (&raw const guest_code_end).addr() - start.addr();
    assert!(bytes <= memory::FRAME);
    // SAFETY: from this program's image into the guest's second page, which has no other use; the
    // guest is not running.
    unsafe { core::ptr::copy_nonoverlapping(start, host_pointer(CODE), bytes) };
}

/// Writes the list of addresses for [`Program::WriteList`].
pub fn write_list(addresses: &[u32]) {
    assert!(addresses.len() as u64 * 4 <= LIST_BYTES);
    // SAFETY: the list's place in the guest's memory has this size; the guest is not running.
    unsafe {
        core::ptr::copy_nonoverlapping(
            addresses.as_ptr(),
            host_pointer(LIST).cast(),
            addresses.len(),
        );
    }
}

/// Address of the guest's page directory, for guests with paging.
pub const DIRECTORY: u64 = 0x2000;

/// Fills the page directory: an identity mapping of the guest's memory with 4 MiB pages. Their
/// accessed and dirty flags are set, so that the processor does not need to write them.
pub fn write_directory() {
    const PRESENT_WRITABLE_ACCESSED_DIRTY_LARGE: u32 = 0xe3;
    let entries = (0_u32..)
        .step_by(4 << 20)
        .take_while(|start| u64::from(*start) < BYTES);
    for (place, start) in entries.enumerate() {
        // SAFETY: one of the directory's 1,024 words, in a page without other use; the guest is not
        // running.
        unsafe {
            host_pointer(DIRECTORY)
                .cast::<u32>()
                .add(place)
                .write_volatile(start | PRESENT_WRITABLE_ACCESSED_DIRTY_LARGE);
        }
    }
}

/// Reads a word of the guest's memory.
pub fn read_word(address: u64) -> u32 {
    // SAFETY: inside the guest's memory and aligned; the guest is not running.
    unsafe { host_pointer(address).cast::<u32>().read_volatile() }
}
