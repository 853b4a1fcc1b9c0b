//! One thing to measure: a network, a workload and a system.

use hikkoshi_lab::Workload as GuestWorkload;
use serde::{Deserialize, Serialize};
use std::fmt;

use super::network::NetworkKind;
use super::system::System;
use super::variant::Variant;
use super::workload::Workload;

/// One thing to measure.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Deserialize, Serialize)]
pub(crate) struct Case {
    /// The network between the hosts.
    #[serde(rename = "line")]
    pub network: NetworkKind,
    /// What the guest does.
    #[serde(rename = "load")]
    pub workload: Workload,
    /// What moves the guest.
    pub system: System,
    /// hikkoshi's options.
    pub variant: Variant,
    /// Whether a nano guest uses asynchronous page faults. The other guests have none.
    pub async_faults: bool,
}

impl Case {
    /// Whether it is measured once, and not in each round.
    pub(super) fn runs_once(&self) -> bool {
        match (self.workload, self.system) {
            // It does not converge, so it gives the same result every time.
            (Workload::Endless, _) => true,
            // Its result is a plot of single requests.
            (Workload::NanoTimeline, _) => true,
            // It takes a minute.
            (Workload::NanoScan, System::QemuPreempt) => true,
            _ => false,
        }
    }

    /// The workload of the guest, with its options.
    pub(crate) fn guest_workload(&self) -> GuestWorkload {
        let workload = self.workload.guest_workload();
        match self.async_faults {
            true => workload,
            false => workload.option("async_pf", "off"),
        }
    }

    /// The system with its variant, and whether the guest has to do without asynchronous page
    /// faults, for tables.
    pub(crate) fn system_label(&self) -> String {
        let mut label = self.system.name().to_owned();
        if self.variant != Variant::Plain {
            label.push_str(&format!("/{}", self.variant));
        }
        if !self.async_faults {
            label.push_str("/no-async");
        }
        label
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}/{}/{}",
            self.network,
            self.workload,
            self.system_label()
        )
    }
}
