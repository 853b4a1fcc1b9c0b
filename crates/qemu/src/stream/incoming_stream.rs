//! Writes the stream that an incoming QEMU loads: a frame around the devices' sections.
//!
//! ```text
//! header          magic, version
//! configuration   07, length (4 bytes), name of the machine type
//! section "ram"   the names and used lengths of all RAM blocks, no page
//! sections        of the devices, as the source's QEMU wrote them
//! end mark        00
//! description     06, length (4 bytes), JSON; QEMU skips it
//! ```
//!
//! QEMU refuses a stream without the configuration section, and one whose machine type differs
//! from its own. From `ram` it takes the used lengths: blocks that can be resized (ACPI tables,
//! ROMs) get the source's length before the devices are loaded, which check them.

use hikkoshi_pages::PAGE_BYTES;

use super::format::{
    Bytes, COMMAND, CONFIGURATION, DESCRIPTION, END, HEADER_BYTES, MAGIC, PACKAGED, SectionHeader,
    StreamError, VERSION, write_footer, write_name,
};
use super::parse_device_state::SavedDevices;

/// The version of the section `ram` since QEMU 0.15.
const RAM_VERSION: u32 = 4;

/// The section's number. QEMU numbers its own sections from 0 on.
const RAM_ID: u32 = u32::MAX;

const RAM: SectionHeader<'static> = SectionHeader {
    id: RAM_ID,
    name: "ram",
    instance: 0,
    version: RAM_VERSION,
};

/// `RAM_SAVE_FLAG_PAGE`: a page follows.
const PAGE: u64 = 0x08;

/// `RAM_SAVE_FLAG_MEM_SIZE` (`migration/ram.c`): the list of blocks follows. The other bits of the
/// number are the sum of their lengths.
const MEM_SIZE: u64 = 0x04;

/// `RAM_SAVE_FLAG_EOS`: the end of a part of `ram`.
const END_OF_RAM: u64 = 0x10;

/// The end mark, and an empty description: mark, length, JSON. QEMU reads one (unless the machine
/// type says otherwise: then it closes the stream before).
const TAIL: [u8; 8] = [END, DESCRIPTION, 0, 0, 0, 2, b'{', b'}'];

/// The longest name of a machine type that is accepted; QEMU has no limit.
const MAX_MACHINE: usize = 255;

/// A RAM block as QEMU's stream names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamBlock {
    /// QEMU's name for it (`info ramblock`).
    pub name: String,
    /// The length in bytes that the guest uses now. A resizable block can grow beyond it.
    pub used: u64,
}

/// The part of the stream before the devices' sections. It depends only on the machine, not on
/// the devices' state, so that it can be sent before the guest is paused.
///
/// `machine` is the name of the machine type without `-machine` (`qom-get /machine type`).
///
/// # Errors
///
/// A name that is too long, or a length that QEMU's stream cannot hold.
pub fn head(machine: &str, blocks: &[StreamBlock]) -> Result<Vec<u8>, StreamError> {
    let mut stream = beginning(machine)?;
    write_ram(&mut stream, blocks)?;
    Ok(stream)
}

/// The header and the configuration section.
pub(crate) fn beginning(machine: &str) -> Result<Vec<u8>, StreamError> {
    let mut stream = Vec::new();
    stream.extend(MAGIC.to_be_bytes());
    stream.extend(VERSION.to_be_bytes());
    stream.push(CONFIGURATION);
    let length = u32::try_from(machine.len()).ok();
    let length = length.filter(|_| machine.len() <= MAX_MACHINE);
    let length = length.ok_or_else(|| StreamError::LongName {
        what: "machine type",
        name: machine.to_owned(),
    })?;
    stream.extend(length.to_be_bytes());
    stream.extend(machine.as_bytes());
    Ok(stream)
}

/// The sections of a stream that [`whole`] has made, without [`beginning`] and [`tail`]: for a QEMU
/// that has loaded its beginning, and must not complete it yet.
pub(crate) fn sections(stream: &[u8]) -> Result<&[u8], StreamError> {
    const PART: &str = "the configuration section";
    let mut bytes = Bytes::new(stream, HEADER_BYTES);
    let at = bytes.at();
    if bytes.u8(PART)? != CONFIGURATION {
        return Err(StreamError::Section { at });
    }
    let length = bytes.u32(PART)?;
    bytes.take(usize::try_from(length).unwrap_or(usize::MAX), PART)?;
    let rest = stream.get(bytes.at()..).unwrap_or_default();
    rest.strip_suffix(&TAIL).ok_or(StreamError::NoEnd)
}

/// A section that makes QEMU write a page to the beginning of each of these blocks.
pub(crate) fn first_pages<'a>(
    pages: impl Iterator<Item = (&'a str, &'a [u8])>,
) -> Result<Vec<u8>, StreamError> {
    let mut stream = Vec::new();
    RAM.write(&mut stream)?;
    for (block, page) in pages {
        // The number is the page's offset in the block, and the flags.
        stream.extend(PAGE.to_be_bytes());
        write_name(&mut stream, "RAM block", block)?;
        stream.extend(page);
    }
    stream.extend(END_OF_RAM.to_be_bytes());
    write_footer(&mut stream, RAM_ID);
    Ok(stream)
}

/// A part of a stream with at least `bytes` bytes and without effect: a package (as QEMU sends it
/// in post-copy) whose stream ends at once. QEMU copies the rest, and does not read it.
///
/// When QEMU has read it into its buffer, it has loaded what is further ahead than the buffer is
/// long.
pub(crate) fn filler(bytes: u32) -> Vec<u8> {
    let mut stream = vec![COMMAND];
    stream.extend(PACKAGED.to_be_bytes());
    // The length of the command's own part, which is the length of the package.
    stream.extend(4u16.to_be_bytes());
    stream.extend(bytes.to_be_bytes());
    let package = usize::try_from(bytes).unwrap_or_default();
    stream.resize(stream.len() + package, END);
    stream
}

fn write_ram(stream: &mut Vec<u8>, blocks: &[StreamBlock]) -> Result<(), StreamError> {
    RAM.write(stream)?;
    let mut total = 0u64;
    for block in blocks {
        let sum = total.checked_add(block.used);
        total = sum
            .filter(|_| block.used.is_multiple_of(PAGE_BYTES))
            .ok_or_else(|| StreamError::BlockLength {
                name: block.name.clone(),
                bytes: block.used,
            })?;
    }
    stream.extend((total | MEM_SIZE).to_be_bytes());
    for block in blocks {
        write_name(stream, "RAM block", &block.name)?;
        stream.extend(block.used.to_be_bytes());
    }
    stream.extend(END_OF_RAM.to_be_bytes());
    write_footer(stream, RAM_ID);
    Ok(())
}

/// The part of the stream after the devices' sections.
pub fn tail() -> [u8; 8] {
    TAIL
}

/// The complete stream.
///
/// # Errors
///
/// See [`head`].
pub fn whole(
    machine: &str,
    blocks: &[StreamBlock],
    devices: &SavedDevices<'_>,
) -> Result<Vec<u8>, StreamError> {
    let mut stream = head(machine, blocks)?;
    stream.extend(devices.as_bytes());
    stream.extend(tail());
    Ok(stream)
}
