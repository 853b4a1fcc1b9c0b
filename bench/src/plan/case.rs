//! One thing to measure: a network, a workload and a system.

use serde::Serialize;
use std::fmt;

use super::network::NetworkKind;
use super::system::System;
use super::variant::Variant;
use super::workload::Workload;

/// One thing to measure.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
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
    /// The default number of rounds.
    pub rounds: u32,
}

impl Case {
    /// The system with its variant, for tables.
    pub(crate) fn system_label(&self) -> String {
        match self.variant {
            Variant::Plain => self.system.name().to_owned(),
            variant => format!("{}/{variant}", self.system.name()),
        }
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
