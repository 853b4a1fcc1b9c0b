//! A machine's firmware.

use crate::artifacts::{kernel, ovmf, packaged_kernel};
use crate::{Lab, LabError};
use serde_json::json;
use std::fs;
use std::path::PathBuf;

/// A machine's firmware.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Firmware {
    /// The machine's default: SeaBIOS, or qboot's for `microvm`.
    #[default]
    Default,
    /// A few instructions that start a kernel, from QEMU's own folder. Where ring 0 is slow,
    /// SeaBIOS takes half a minute.
    Qboot,
    /// UEFI, with the variable store in flash: each machine has its own copy.
    Ovmf,
}

impl Firmware {
    /// The guest's kernel, in the form that this firmware starts.
    ///
    /// QEMU puts the initramfs of a decompressed kernel at a fixed distance from the end of memory,
    /// over the ACPI tables of a machine with a TPM: they are larger. Without its tables the guest
    /// has no ACPI, one processor and no TPM.
    pub(crate) fn kernel(self, has_tpm: bool) -> Result<PathBuf, LabError> {
        match self {
            Self::Default | Self::Qboot if !has_tpm => kernel(),
            _ => packaged_kernel(),
        }
    }

    /// QEMU's arguments for machine `vm`, and what is appended to `-machine TYPE`.
    pub(crate) fn prepare(
        self,
        lab: &Lab,
        vm: &str,
    ) -> Result<(Vec<String>, &'static str), LabError> {
        match self {
            Self::Default => return Ok((Vec::new(), "")),
            Self::Qboot => return Ok((["-bios", "qboot.rom"].map(str::to_owned).into(), "")),
            Self::Ovmf => {}
        }
        let code = ovmf("code.fd")?;
        let template = ovmf("vars.fd")?;
        let variables = lab.folder().join(format!("{vm}.variables"));
        fs::copy(&template, &variables).map_err(LabError::file("creating", &variables))?;
        let node = |name: &str, path: &std::path::Path, read_only: bool| {
            json!({
                "node-name": name,
                "driver": "raw",
                "read-only": read_only,
                "file": { "driver": "file", "filename": path, "read-only": read_only },
            })
            .to_string()
        };
        let arguments = [
            ["-blockdev".to_owned(), node("firmware", &code, true)],
            ["-blockdev".to_owned(), node("variables", &variables, false)],
        ]
        .concat();
        Ok((arguments, ",pflash0=firmware,pflash1=variables"))
    }
}
