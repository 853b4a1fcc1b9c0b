//! The format of QEMU's migration stream: marks, section headers and footers.
//!
//! `migration/savevm.h` and `migration/savevm.c` of QEMU define it. All numbers are big-endian. A
//! section has no length: only the code that loads it knows where it ends. Its footer repeats the
//! section's number.

use thiserror::Error;

/// `QEVM`, the first four bytes (`QEMU_VM_FILE_MAGIC`).
pub(super) const MAGIC: u32 = 0x5145_564d;
/// `QEMU_VM_FILE_VERSION`.
pub(super) const VERSION: u32 = 3;
/// Bytes of magic and version.
pub(super) const HEADER_BYTES: usize = 8;

/// `QEMU_VM_EOF`: the end mark after the last section.
pub(super) const END: u8 = 0x00;
/// `QEMU_VM_SECTION_FULL`: a section in one part.
pub(super) const SECTION_FULL: u8 = 0x04;
/// `QEMU_VM_VMDESCRIPTION`: a description as JSON, which QEMU skips when it loads.
pub(super) const DESCRIPTION: u8 = 0x06;
/// `QEMU_VM_COMMAND`: a command of post-copy migration.
pub(super) const COMMAND: u8 = 0x08;
/// `MIG_CMD_PACKAGED`: a stream within the stream follows, with its length. QEMU reads all of it
/// before it loads it.
pub(super) const PACKAGED: u16 = 7;
/// `QEMU_VM_CONFIGURATION`: the name of the machine type, and the capabilities.
pub(super) const CONFIGURATION: u8 = 0x07;
/// `QEMU_VM_SECTION_FOOTER`.
pub(super) const FOOTER: u8 = 0x7e;
/// Bytes of a footer: mark and number.
pub(super) const FOOTER_BYTES: usize = 5;

/// Bytes that are not a stream of QEMU's devices.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum StreamError {
    /// It ends too early.
    #[error("the device state ends after {bytes} bytes, in the middle of {part}")]
    Truncated {
        /// What was being read.
        part: &'static str,
        /// The bytes that are there.
        bytes: usize,
    },
    /// It does not begin as it should.
    #[error(
        "the device state begins with {found:#010x}, version {version}, instead of QEMU's mark \
         {MAGIC:#010x}, version {VERSION}"
    )]
    Header {
        /// The first four bytes.
        found: u32,
        /// The next four bytes.
        version: u32,
    },
    /// It does not have the form of a section.
    #[error("the device state has no section at byte {at}, where one must begin")]
    Section {
        /// The offset.
        at: usize,
    },
    /// The sections do not end in the end mark.
    #[error(
        "the device state does not end with a section's footer and the end mark (machine types \
         before 2.4 write no footers and cannot be moved: use a newer machine type)"
    )]
    NoEnd,
    /// It is too long.
    #[error("the device state has {bytes} bytes, more than {limit}")]
    TooLong {
        /// The bytes.
        bytes: u64,
        /// The limit.
        limit: u64,
    },
    /// A name does not fit into the format.
    #[error("the {what} \"{name}\" has {} bytes, more than QEMU's stream can hold", name.len())]
    LongName {
        /// Whose name it is.
        what: &'static str,
        /// The name.
        name: String,
    },
    /// The lengths of RAM blocks cannot be written.
    #[error(
        "the RAM block \"{name}\" has {bytes} bytes, which is not a multiple of 4 KiB, or all \
         blocks together are too long"
    )]
    BlockLength {
        /// The block.
        name: String,
        /// Its used length.
        bytes: u64,
    },
}

/// Takes pieces from the beginning of a slice.
#[derive(Debug, Clone)]
pub(super) struct Bytes<'a> {
    all: &'a [u8],
    at: usize,
}

impl<'a> Bytes<'a> {
    pub(super) fn new(all: &'a [u8], at: usize) -> Self {
        Self { all, at }
    }

    pub(super) fn at(&self) -> usize {
        self.at
    }

    pub(super) fn take(
        &mut self,
        bytes: usize,
        part: &'static str,
    ) -> Result<&'a [u8], StreamError> {
        let end = self.at.checked_add(bytes);
        let taken = end.and_then(|end| self.all.get(self.at..end));
        let taken = taken.ok_or(StreamError::Truncated {
            part,
            bytes: self.all.len(),
        })?;
        self.at += bytes;
        Ok(taken)
    }

    pub(super) fn u8(&mut self, part: &'static str) -> Result<u8, StreamError> {
        Ok(self.take(1, part)?[0])
    }

    pub(super) fn u32(&mut self, part: &'static str) -> Result<u32, StreamError> {
        let mut number = [0; 4];
        number.copy_from_slice(self.take(4, part)?);
        Ok(u32::from_be_bytes(number))
    }
}

/// The beginning of a section.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SectionHeader<'a> {
    pub(super) id: u32,
    pub(super) name: &'a str,
    pub(super) instance: u32,
    pub(super) version: u32,
}

impl<'a> SectionHeader<'a> {
    /// Reads a header after its mark.
    pub(super) fn read(bytes: &mut Bytes<'a>) -> Result<Self, StreamError> {
        const PART: &str = "a section's header";
        let at = bytes.at();
        let id = bytes.u32(PART)?;
        let length = bytes.u8(PART)?;
        let name = bytes.take(length.into(), PART)?;
        let is_name = !name.is_empty()
            && name
                .iter()
                .all(|byte| byte.is_ascii_graphic() || *byte == b' ');
        let name = std::str::from_utf8(name).ok().filter(|_| is_name);
        let name = name.ok_or(StreamError::Section { at })?;
        Ok(Self {
            id,
            name,
            instance: bytes.u32(PART)?,
            version: bytes.u32(PART)?,
        })
    }

    /// Writes mark and header of a section in one part.
    pub(super) fn write(&self, into: &mut Vec<u8>) -> Result<(), StreamError> {
        into.push(SECTION_FULL);
        into.extend(self.id.to_be_bytes());
        write_name(into, "section", self.name)?;
        into.extend(self.instance.to_be_bytes());
        into.extend(self.version.to_be_bytes());
        Ok(())
    }
}

/// Writes a section's footer.
pub(super) fn write_footer(into: &mut Vec<u8>, id: u32) {
    into.push(FOOTER);
    into.extend(id.to_be_bytes());
}

/// Writes a name behind its length in one byte.
pub(super) fn write_name(
    into: &mut Vec<u8>,
    what: &'static str,
    name: &str,
) -> Result<(), StreamError> {
    let length = u8::try_from(name.len()).map_err(|_| StreamError::LongName {
        what,
        name: name.to_owned(),
    })?;
    into.push(length);
    into.extend(name.as_bytes());
    Ok(())
}
