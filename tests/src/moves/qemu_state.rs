//! The state of a QEMU process that a migration could change.

use crate::eventually;
use hikkoshi_lab::Vm;
use serde_json::{Value, json};
use std::fs;

/// The state of a QEMU process that a migration could change.
#[derive(Clone, Debug, PartialEq)]
pub struct QemuState {
    capabilities: Value,
    parameters: Value,
    /// File descriptors that are userfaultfds.
    userfaults: Vec<String>,
    /// Mappings that are registered with a userfaultfd.
    registered: Vec<String>,
    /// Number of open file descriptors.
    descriptors: usize,
}

impl QemuState {
    /// Reads the state of a running QEMU.
    ///
    /// # Panics
    /// When it has ended.
    pub fn of_vm(vm: &Vm) -> Self {
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

    /// Whether the process has no userfaultfd and no registered mapping.
    pub fn has_no_userfaultfd(&self) -> bool {
        self.userfaults.is_empty() && self.registered.is_empty()
    }

    /// Asserts that a running QEMU has no userfaultfd, now or shortly: the kernel removes one when
    /// the last process that has it open has ended.
    ///
    /// # Panics
    /// When it still has one, or has ended.
    pub fn assert_no_userfaultfd(vm: &Vm) {
        eventually("no userfaultfd", || {
            let now = Self::of_vm(vm);
            if now.has_no_userfaultfd() {
                Ok(())
            } else {
                Err(format!("{now:?}"))
            }
        });
    }

    /// Asserts that the state is unchanged, now or shortly: QEMU closes a monitor's file
    /// descriptors asynchronously.
    ///
    /// # Panics
    /// When it has changed.
    pub fn assert_unchanged(&self, vm: &Vm) {
        eventually("QEMU to be as before", || {
            let now = Self::of_vm(vm);
            if now == *self {
                Ok(())
            } else {
                Err(format!("before: {self:?}\nnow: {now:?}"))
            }
        });
    }
}

/// The first lines of mappings that have a userfaultfd flag: `um` missing, `uw` write protection,
/// `ui` minor (proc(5), VmFlags).
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
