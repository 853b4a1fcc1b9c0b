//! Reads what `xen-save-devices-state` writes: the devices' sections, and no memory.

use hikkoshi_wire::MAX_DEVICE_STATE;

use super::format::{
    Bytes, END, FOOTER, FOOTER_BYTES, HEADER_BYTES, MAGIC, SECTION_FULL, SectionHeader,
    StreamError, VERSION,
};

/// The devices' sections as QEMU wrote them.
///
/// The QMP command `xen-save-devices-state` writes the same sections as `migrate`, without
/// `ram`, configuration and description (`qemu_save_device_state` in QEMU's
/// `migration/savevm.c`; nothing in it needs Xen).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SavedDevices<'a> {
    sections: &'a [u8],
}

/// One section of [`SavedDevices`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Section<'a> {
    /// Its number in this stream.
    pub id: u32,
    /// The device.
    pub name: &'a str,
    /// Tells devices of the same name apart.
    pub instance: u32,
    /// The version of the payload's format.
    pub version: u32,
    /// The device's state.
    pub payload: &'a [u8],
}

impl<'a> SavedDevices<'a> {
    /// Checks that `bytes` are everything that `xen-save-devices-state` wrote: its header, at
    /// least one section, and behind the last section's footer the end mark.
    ///
    /// Does not search for the footers between sections: a payload, which the guest can choose,
    /// may contain bytes that resemble one.
    ///
    /// # Errors
    ///
    /// See [`StreamError`].
    pub fn parse(bytes: &'a [u8]) -> Result<Self, StreamError> {
        if bytes.len() as u64 > MAX_DEVICE_STATE {
            return Err(StreamError::TooLong {
                bytes: bytes.len() as u64,
                limit: MAX_DEVICE_STATE,
            });
        }
        let mut at = Bytes::new(bytes, 0);
        let (found, version) = (at.u32("its header")?, at.u32("its header")?);
        if (found, version) != (MAGIC, VERSION) {
            return Err(StreamError::Header { found, version });
        }
        if at.u8("its first section")? != SECTION_FULL {
            return Err(StreamError::Section { at: HEADER_BYTES });
        }
        SectionHeader::read(&mut at)?;
        let Some(end) = bytes.len().checked_sub(1 + FOOTER_BYTES) else {
            return Err(StreamError::NoEnd);
        };
        if end < at.at() || bytes[end] != FOOTER || bytes[bytes.len() - 1] != END {
            return Err(StreamError::NoEnd);
        }
        Ok(Self {
            sections: &bytes[HEADER_BYTES..bytes.len() - 1],
        })
    }

    /// All sections, as they are, without header and end mark.
    pub fn as_bytes(&self) -> &'a [u8] {
        self.sections
    }

    /// The sections one by one, for tests and diagnosis: a section ends at the first footer with
    /// its number that is followed by another section or the end. A guest can put such bytes into
    /// a device's state, so nothing may depend on the result.
    ///
    /// # Errors
    ///
    /// [`StreamError`] if a section does not end.
    pub fn sections(&self) -> Result<Vec<Section<'a>>, StreamError> {
        let mut all = Vec::new();
        let mut at = 0;
        while at < self.sections.len() {
            let (section, next) = section_at(self.sections, at)?;
            all.push(section);
            at = next;
        }
        Ok(all)
    }
}

/// The guest's virtual clock in these sections, in nanoseconds: `cpu_clock_offset` of a guest that
/// does not run. It is one of the first sections, before those that the guest can choose.
pub(crate) fn virtual_clock(sections: &[u8]) -> Option<u64> {
    /// `cpu_ticks_offset`, and eight bytes that are not used any more (`vmstate_timers`).
    const BEFORE: usize = 16;
    let mut at = 0;
    while at < sections.len() {
        let (section, next) = section_at(sections, at).ok()?;
        if section.name == "timer" && section.instance == 0 {
            let bytes = section.payload.get(BEFORE..BEFORE + 8)?;
            return Some(u64::from_be_bytes(bytes.try_into().ok()?));
        }
        at = next;
    }
    None
}

/// The section at this offset, and the offset of the next.
fn section_at(sections: &[u8], at: usize) -> Result<(Section<'_>, usize), StreamError> {
    let mut bytes = Bytes::new(sections, at);
    if bytes.u8("a section")? != SECTION_FULL {
        return Err(StreamError::Section { at });
    }
    let header = SectionHeader::read(&mut bytes)?;
    let start = bytes.at();
    let mut footer = [FOOTER; FOOTER_BYTES];
    footer[1..].copy_from_slice(&header.id.to_be_bytes());
    let rest = &sections[start..];
    let found = rest.windows(FOOTER_BYTES).enumerate().find(|(at, window)| {
        *window == footer && is_section_or_end(sections, start + at + FOOTER_BYTES)
    });
    let (bytes, _) = found.ok_or(StreamError::Truncated {
        part: "a section",
        bytes: sections.len(),
    })?;
    let section = Section {
        id: header.id,
        name: header.name,
        instance: header.instance,
        version: header.version,
        payload: &rest[..bytes],
    };
    Ok((section, start + bytes + FOOTER_BYTES))
}

fn is_section_or_end(sections: &[u8], at: usize) -> bool {
    let mut bytes = Bytes::new(sections, at);
    match bytes.u8("") {
        Ok(SECTION_FULL) => SectionHeader::read(&mut bytes).is_ok(),
        Ok(_) => false,
        Err(_) => true,
    }
}
