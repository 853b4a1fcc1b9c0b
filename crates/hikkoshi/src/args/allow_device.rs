//! `--allow-device` and `--allow-managed`, of the commands that look at a guest.

use clap::Args;
use hikkoshi_engine::Observer;
use hikkoshi_qemu::Allowed;

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
    pub(crate) fn allowed(&self) -> Allowed {
        Allowed::new(self.allow_device.iter().cloned())
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

/// What the user allows of a guest that is to be moved away.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct AllowSource {
    #[command(flatten)]
    pub devices: AllowDevice,

    /// Move a guest that a manager such as OpenStack or Proxmox VE seems to own
    ///
    /// Its QEMU's command line shows that, or the mark of Pacemaker's resource agent. The manager
    /// does not know of the move: it may start the guest a second time, or end it while its pages
    /// are sent.
    #[arg(verbatim_doc_comment, long, help_heading = MIGRATION)]
    pub allow_managed: bool,
}

impl AllowSource {
    /// What is allowed, for the checks of a guest.
    pub(crate) fn allowed(&self) -> Allowed {
        self.devices.allowed().managed(self.allow_managed)
    }

    /// Reports what the options mean.
    pub(crate) fn warn(&self, observer: &dyn Observer) {
        self.devices.warn(observer);
        if self.allow_managed {
            observer.notice(
                "--allow-managed: hikkoshi does not check whether another manager owns the guest; \
                 if one does, it may start the guest a second time, or end it",
            );
        }
    }
}
