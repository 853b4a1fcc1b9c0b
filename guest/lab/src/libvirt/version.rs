//! The versions of libvirt that a host can have.

use crate::LabError;
use std::io;

/// A version of libvirt, with its QEMU.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum LibvirtVersion {
    /// 9.0, with QEMU 10.0.
    V9,
    /// 11.3, with QEMU 10.0.
    V11,
    /// 12.9, with QEMU 11.1.
    V12,
}

/// The versions of the source and of the destination, such as `9.0:12.9`, or one for both.
const VARIABLE: &str = "HIKKOSHI_LIBVIRT";

impl LibvirtVersion {
    /// All of them, the oldest first.
    pub const ALL: [Self; 3] = [Self::V9, Self::V11, Self::V12];

    /// The number.
    pub fn number(self) -> &'static str {
        match self {
            Self::V9 => "9.0",
            Self::V11 => "11.3",
            Self::V12 => "12.9",
        }
    }

    /// The number of its QEMU.
    pub fn qemu(self) -> &'static str {
        match self {
            Self::V9 | Self::V11 => "10.0",
            Self::V12 => "11.1",
        }
    }

    fn parse(text: &str) -> Result<Self, LabError> {
        let known = Self::ALL.into_iter().find(|known| known.number() == text);
        known.ok_or_else(|| LabError::File {
            doing: "looking for libvirt",
            path: text.into(),
            source: io::Error::new(
                io::ErrorKind::NotFound,
                format!("{VARIABLE} may name 9.0, 11.3 and 12.9"),
            ),
        })
    }

    /// Those of hosts for which a test does not name others: of the environment variable
    /// `HIKKOSHI_LIBVIRT`, or 9.0.
    ///
    /// # Errors
    /// When it names another one.
    pub fn usual() -> Result<[Self; 2], LabError> {
        let Some(named) = std::env::var(VARIABLE).ok().filter(|text| !text.is_empty()) else {
            return Ok([Self::V9; 2]);
        };
        let (source, destination) = named.split_once(':').unwrap_or((&named, &named));
        Ok([Self::parse(source)?, Self::parse(destination)?])
    }
}
