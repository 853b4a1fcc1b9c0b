//! Looks at a QEMU without changing anything, and collects every obstacle to a move.

use std::sync::Arc;

use hikkoshi_account::Side;
use hikkoshi_linux::Process;
use hikkoshi_userfault::Features;

use super::preflight::{self, Allowed, Refusal, manager};
use super::{AttachError, stale_userfaultfds};
use crate::process;
use crate::process::privileges;
use crate::process::reopen::FileAccess;
use crate::qmp::Client;
use crate::ram::{self, Ram, RamError, RamErrors};

/// What was found.
#[derive(Debug)]
pub(crate) struct Inspection {
    pub(crate) client: Client,
    /// `None`: it cannot be accessed, and an obstacle says why.
    pub(crate) process: Option<Arc<Process>>,
    /// `None`: it cannot be moved, and an obstacle says why.
    pub(crate) ram: Option<Ram>,
    /// What prevents a move, in the modes that
    /// [`excludes`](AttachError::excludes) names.
    pub(crate) obstacles: Vec<AttachError>,
}

/// Inspects the QEMU of an open session. An error: nothing is known of it.
pub(crate) fn inspect(
    mut client: Client,
    side: Side,
    allowed: &Allowed,
) -> Result<Inspection, AttachError> {
    let refusals = preflight::check(&mut client, side, allowed).map_err(Refusal::Qmp)?;
    let mut found = Inspection {
        client,
        process: None,
        ram: None,
        obstacles: refusals.into_iter().map(Into::into).collect(),
    };
    let failed = found.inspect_process(side, allowed);
    found.obstacles.extend(failed.err());
    Ok(found)
}

impl Inspection {
    /// The process and its memory. Each step needs those before it.
    fn inspect_process(&mut self, side: Side, allowed: &Allowed) -> Result<(), AttachError> {
        let process = process::find(&self.client)?;
        // First: without this right, some of the following information is hidden
        // instead of denied, which would lead to misleading errors.
        process::check_right_to_trace(&process)?;
        self.process = Some(Arc::clone(&process));
        if side == Side::Source && !allowed.is_managed() {
            let managed = manager::check(&process)
                .map_err(|error| process::explain(&process, "reading the command line", error))?;
            self.obstacles.extend(managed.map(Into::into));
        }
        let access = match side {
            Side::Source => FileAccess::Read,
            Side::Destination => FileAccess::Write,
        };
        match ram::find(&mut self.client, &process, access) {
            Ok(mut ram) => {
                let shortage = ram.shortage.take().map(RamError::NotEnoughMemory);
                self.obstacles.extend(shortage.map(Into::into));
                if side == Side::Destination {
                    let in_use = ram::sharing::check(&process, &ram.memory, &mut ram.warnings);
                    self.obstacles.extend(in_use.into_iter().map(Into::into));
                }
                if side == Side::Source {
                    let refusals = preflight::check_tracking(ram.memory.layout());
                    self.obstacles.extend(refusals.into_iter().map(Into::into));
                }
                self.ram = Some(ram);
            }
            Err(errors) => self.add(errors),
        }
        match side {
            Side::Source => {
                let userfaultfd = privileges::check_userfaultfd(&process);
                self.obstacles.extend(userfaultfd.err().map(Into::into));
                stale_userfaultfds::check(&process)?;
            }
            Side::Destination => {
                // One reason for the same is enough.
                let is_used = |obstacle: &AttachError| {
                    matches!(obstacle, AttachError::Refused(Refusal::Used { .. }))
                };
                if !self.obstacles.iter().any(is_used) {
                    stale_userfaultfds::refuse_all(&process)?;
                }
                check_kernel()?;
            }
        }
        Ok(())
    }

    fn add(&mut self, errors: RamErrors) {
        self.obstacles.extend(errors.0.into_iter().map(Into::into));
    }
}

pub(crate) fn check_kernel() -> Result<(), AttachError> {
    // If we may not query this, QEMU's process may still be allowed to use it.
    let Ok(supported) = Features::supported() else {
        return Ok(());
    };
    let missing = Features::FOR_MISSING.without(supported);
    if missing.is_empty() {
        Ok(())
    } else {
        Err(AttachError::Kernel {
            missing: missing.to_string(),
        })
    }
}
