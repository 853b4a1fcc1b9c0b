//! `--allow-device`, of all commands that look at a guest.

use clap::Args;
use hikkoshi_engine::Observer;
use hikkoshi_qemu::AllowedTypes;

use super::headings::MIGRATION;

/// The types of devices that the user allows.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct AllowDevice {
    /// Allow a device, network backend or block driver that hikkoshi does not know
    ///
    /// A guest with such a device is refused otherwise. Writes of the device to the guest's memory
    /// that bypass QEMU's page tables are lost. Can be given several times.
    #[arg(verbatim_doc_comment, long, value_name = "TYPE", help_heading = MIGRATION)]
    pub allow_device: Vec<String>,
}

impl AllowDevice {
    /// The types, for the checks of a guest.
    pub(crate) fn allowed(&self) -> AllowedTypes {
        AllowedTypes::new(self.allow_device.iter().cloned())
    }

    /// Reports what the option means.
    pub(crate) fn warn(&self, observer: &dyn Observer) {
        for device in &self.allow_device {
            observer.notice(&format!(
                "--allow-device {device}: hikkoshi does not check whether this device writes to \
                 the guest's memory in a way that it cannot see; if it does, the guest loses pages"
            ));
        }
    }
}
