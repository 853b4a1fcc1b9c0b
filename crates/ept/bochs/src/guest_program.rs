//! The guest: a few lines of 32-bit code, and its memory.
//!
//! The guest's address 0 is the first byte of [`memory::GUEST`]. Its programs lie in its second
//! page; the lists that say what to write begin at [`LIST`].

use crate::memory;
use crate::vmx::vcpu::Registers;

/// Bytes of the guest's memory.
pub const BYTES: u64 = (memory::GUEST.end - memory::GUEST.start) as u64;
/// Where the guest's programs are.
pub const CODE: u64 = 0x1000;
/// Where the list of addresses begins; it may fill [`LIST_BYTES`].
pub const LIST: u64 = 0x10_0000;
/// Room for the list.
pub const LIST_BYTES: u64 = 0x10_0000;
/// The memory from here on is for writing to.
pub const WRITE_AREA: u64 = 0x20_0000;

// Programs of the guest. Both end by calling the hypervisor, and would begin anew after it.
core::arch::global_asm!(
    r#"
    .section .rodata.guest, "a"
    .code32
    .global guest_code_start
    .global guest_write_list
    .global guest_write_stride
    .global guest_read_stride
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
    static guest_code_end: u8;
}

/// What the guest does when it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    /// Writes to each address of the list.
    WriteList,
    /// Writes at equal distances, without reading anything.
    WriteStride,
    /// Reads at equal distances.
    ReadStride,
}

impl Program {
    /// Guest-physical address of its first instruction.
    pub fn address(self) -> u64 {
        let start = &raw const guest_code_start;
        let entry = match self {
            Program::WriteList => &raw const guest_write_list,
            Program::WriteStride => &raw const guest_write_stride,
            Program::ReadStride => &raw const guest_read_stride,
        };
        CODE + (entry.addr() - start.addr()) as u64
    }
}

/// How many addresses of its list a vCPU that runs [`Program::WriteList`] has written to.
///
/// Exact at every instruction: the write itself comes before the step to the next address.
pub fn written(registers: &Registers, instruction: u64) -> usize {
    const WRITE: u64 = 2; // the first instruction has two bytes,
    const AFTER_WRITE: u64 = 4; // and so has the write;
    const AFTER_STEP: u64 = 7; // the step has three.
    let entries = (registers.rsi - LIST) / 4;
    let place = instruction - Program::WriteList.address();
    let done = entries + u64::from(place > WRITE && place < AFTER_STEP);
    debug_assert!(place <= WRITE || place >= AFTER_WRITE);
    usize::try_from(done).unwrap_or(usize::MAX)
}

/// Where a byte of the guest's memory is for the hypervisor.
fn host_pointer(address: u64) -> *mut u8 {
    assert!(address < BYTES, "the guest has no address {address:#x}");
    let offset = usize::try_from(address).unwrap_or(usize::MAX);
    core::ptr::with_exposed_provenance_mut(memory::GUEST.start + offset)
}

/// Puts the programs into the guest's memory.
pub fn load() {
    let start = &raw const guest_code_start;
    let bytes = (&raw const guest_code_end).addr() - start.addr();
    assert!(bytes <= memory::FRAME);
    // SAFETY: from this program's image into the guest's second page, which nobody else uses; the
    // guest is not running.
    unsafe { core::ptr::copy_nonoverlapping(start, host_pointer(CODE), bytes) };
}

/// Writes the list of addresses that [`Program::WriteList`] follows.
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

/// Where the guest's page directory is, for those that page.
pub const DIRECTORY: u64 = 0x2000;

/// Fills the page directory: all of the guest's memory, where it is, by pages of 4 MiB. Their flags
/// (accessed, dirty) are set, so that the processor has nothing to write there.
pub fn write_directory() {
    const PRESENT_WRITABLE_ACCESSED_DIRTY_LARGE: u32 = 0xe3;
    let entries = (0_u32..)
        .step_by(4 << 20)
        .take_while(|start| u64::from(*start) < BYTES);
    for (place, start) in entries.enumerate() {
        // SAFETY: one of the directory's 1,024 words, in a page nobody else uses; the guest is not
        // running.
        unsafe {
            host_pointer(DIRECTORY)
                .cast::<u32>()
                .add(place)
                .write_volatile(start | PRESENT_WRITABLE_ACCESSED_DIRTY_LARGE);
        }
    }
}

/// Reads a word of the guest's memory, as the guest left it.
pub fn read_word(address: u64) -> u32 {
    // SAFETY: inside the guest's memory and aligned; the guest is not running.
    unsafe { host_pointer(address).cast::<u32>().read_volatile() }
}
