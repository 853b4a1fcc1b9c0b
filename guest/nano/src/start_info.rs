//! What QEMU passes at the start: the command line and the map of memory (PVH's `hvm_start_info`).

use core::ptr::with_exposed_provenance;
use core::slice;

const MAGIC: u32 = 0x336e_c578;
/// The type of ordinary memory in the map.
const RAM: u32 = 1;
/// The longest command line.
const COMMAND_LINE: usize = 4096;

#[repr(C)]
#[derive(Clone, Copy)]
struct StartInfo {
    magic: u32,
    version: u32,
    flags: u32,
    modules: u32,
    module_list: u64,
    command_line: u64,
    rsdp: u64,
    memory_map: u64,
    memory_map_entries: u32,
    reserved: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct MapEntry {
    start: u64,
    size: u64,
    kind: u32,
    reserved: u32,
}

unsafe extern "C" {
    /// The address of the structure, which the boot code has stored.
    static start_info: u64;
}

/// What QEMU passed.
#[derive(Clone, Copy, Debug)]
pub struct Start {
    /// The kernel's command line.
    pub command_line: &'static str,
    /// The end of the memory that begins at 1 MiB.
    pub memory_end: u64,
}

/// Reads the structure; `None` if it is not what PVH describes.
pub fn read() -> Option<Start> {
    // SAFETY: the boot code has stored the address; the structure's firmware is done.
    let info =
        unsafe { with_exposed_provenance::<StartInfo>(address(start_info)?).read_unaligned() };
    if info.magic != MAGIC || info.version == 0 {
        return None;
    }
    let line = with_exposed_provenance::<u8>(address(info.command_line)?);
    // SAFETY: the string's bytes, up to its end, in memory that nothing writes any more. Volatile,
    // so that this does not become a call of C's `strlen`.
    let length = (0..COMMAND_LINE).find(|&at| unsafe { line.add(at).read_volatile() } == 0)?;
    // SAFETY: these bytes have just been read.
    let line = unsafe { slice::from_raw_parts(line, length) };
    let map = with_exposed_provenance::<MapEntry>(address(info.memory_map)?);
    let memory_end = (0..info.memory_map_entries as usize)
        // SAFETY: an entry of the map, in memory that nothing writes any more.
        .map(|number| unsafe { map.add(number).read_unaligned() })
        .find(|entry| entry.kind == RAM && entry.start == 1 << 20)
        .map(|entry| entry.start + entry.size)?;
    Some(Start {
        command_line: str::from_utf8(line).ok()?,
        memory_end,
    })
}

/// A physical address, which is also the virtual one.
fn address(physical: u64) -> Option<usize> {
    usize::try_from(physical)
        .ok()
        .filter(|&address| address != 0)
}
