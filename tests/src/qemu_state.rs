//! What a migration could leave behind in a QEMU process.

use crate::eventually;
use hikkoshi_lab::Vm;
use serde_json::{Value, json};
use std::fs;

/// What there is in a QEMU process that a migration could have put there or changed.
#[derive(Clone, Debug, PartialEq)]
pub struct QemuState {
    capabilities: Value,
    parameters: Value,
    /// Open descriptors that are userfaultfds.
    userfaults: Vec<String>,
    /// Mappings that a userfaultfd is registered on.
    registered: Vec<String>,
    /// Open descriptors.
    descriptors: usize,
}

impl QemuState {
    /// Looks at a running QEMU.
    ///
    /// # Panics
    /// When it has gone.
    pub fn of(vm: &Vm) -> Self {
        let query = |command| vm.qmp().execute(command, json!({})).unwrap();
        let proc = format!("/proc/{}", vm.pid());
        let descriptors: Vec<_> = fs::read_dir(format!("{proc}/fd"))
            .unwrap()
            .flatten()
            .filter_map(|entry| fs::read_link(entry.path()).ok())
            .map(|target| target.to_string_lossy().into_owned())
            .collect();
        Self {
            capabilities: query("query-migrate-capabilities"),
            parameters: query("query-migrate-parameters"),
            registered: registered(&fs::read_to_string(format!("{proc}/smaps")).unwrap()),
            descriptors: descriptors.len(),
            userfaults: descriptors
                .into_iter()
                .filter(|target| target.contains("userfaultfd"))
                .collect(),
        }
    }

    /// Whether no userfaultfd has anything to do with it.
    pub fn has_no_userfaultfd(&self) -> bool {
        self.userfaults.is_empty() && self.registered.is_empty()
    }

    /// Asserts that nothing has come and nothing has changed, now or in a moment: QEMU closes a
    /// monitor's descriptors when it gets round to it.
    ///
    /// # Panics
    /// When something has.
    pub fn assert_unchanged(&self, vm: &Vm) {
        eventually("QEMU is as it was before", || {
            let now = Self::of(vm);
            if now == *self {
                Ok(())
            } else {
                Err(format!("before: {self:?}\nnow: {now:?}"))
            }
        });
    }
}

/// The mappings (their first lines) that have a userfaultfd's flag: `um` missing, `uw` write
/// protection, `ui` minor (proc(5), VmFlags).
fn registered(smaps: &str) -> Vec<String> {
    let is_userfault = |flag| ["um", "uw", "ui"].contains(&flag);
    let (mut found, mut mapping) = (Vec::new(), "");
    for line in smaps.lines() {
        if let Some(flags) = line.strip_prefix("VmFlags:") {
            if flags.split_whitespace().any(is_userfault) {
                found.push(format!("{mapping} {flags}"));
            }
        } else if line.split(' ').next().is_some_and(|w| w.contains('-')) {
            mapping = line;
        }
    }
    found
}
