//! A guest whose writes are measured, and which stays where it is: [`QemuMeasurement`].

mod blocks;
mod error;

use std::path::Path;
use std::sync::Arc;

use hikkoshi_account::Side;
use hikkoshi_dirty::{DirtyLog, PagemapLog};
use hikkoshi_linux::Process;
use hikkoshi_memory::GuestRam;
use hikkoshi_pages::RamLayout;
use hikkoshi_userfault::{Features, RemoteUserfault};

pub use self::error::{MeasureError, StopMeasuringError};
use crate::attach::inspect::{Inspection, inspect};
use crate::attach::preflight::{Allowed, Refusal};
use crate::attach::stale_userfaultfds;
use crate::process::exclusive_access::{self, ExclusiveAccess};
use crate::qmp::accelerator::uses_kvm;
use crate::qmp::pause_mark;
use crate::qmp::{CONNECT_TIMEOUT, Client};

/// The dirty log of a running QEMU, with exclusive access to its guest. The connection to its
/// monitor is closed after attaching.
///
/// Dropping it closes the log; [`stop`](Self::stop) reports whether that failed. If this program is
/// killed, a log without a reader stays open inside QEMU. It does not block the guest, and the next
/// program that attaches closes it.
#[derive(Debug)]
pub struct QemuMeasurement {
    process: Arc<Process>,
    layout: RamLayout,
    memory: GuestRam,
    // Dropped in this order: the memory is unregistered, then the userfaultfd is closed, then
    // another program may attach.
    log: PagemapLog,
    userfault: RemoteUserfault,
    kvm: bool,
    notes: Vec<String>,
    _lock: ExclusiveAccess,
}

impl QemuMeasurement {
    /// Attaches to the guest whose QMP socket is at `qmp`, and opens the log of these RAM blocks;
    /// of all, if none is named.
    ///
    /// # Errors
    ///
    /// See [`MeasureError`]; the guest is unchanged.
    pub fn attach(qmp: &Path, blocks: &[String]) -> Result<Self, MeasureError> {
        let client = Client::connect(qmp, CONNECT_TIMEOUT).map_err(MeasureError::Connect)?;
        Self::attach_by(client, blocks)
    }

    /// Attaches by an open session, such as one that libvirt lends.
    ///
    /// # Errors
    ///
    /// See [`MeasureError`]; the guest is unchanged.
    pub fn attach_by(client: Client, blocks: &[String]) -> Result<Self, MeasureError> {
        hikkoshi_dirty::support()?;
        let Inspection {
            mut client,
            process,
            ram,
            obstacles,
        } = inspect(client, Side::Source, &Allowed::default())?;
        let chosen = ram.map(|ram| {
            let chosen = blocks::choose(ram.memory.layout(), &ram.addresses, blocks)?;
            Ok::<_, MeasureError>((chosen, ram.memory))
        });
        let chosen = chosen.transpose()?;
        let layout = chosen.as_ref().map(|((layout, _), _)| layout);
        let (refused, notes) = error::sort(obstacles, layout);
        let (Some(process), Some(((layout, hosts), memory)), true) =
            (process, chosen, refused.is_empty())
        else {
            return Err(MeasureError::Refused(refused));
        };
        let lock = exclusive_access::acquire(&process)?;
        // A migration may have begun and failed since the inspection: its guard, which restores the
        // guest, needs the lock.
        if pause_mark::is_set(&mut client).map_err(Refusal::Qmp)? {
            return Err(MeasureError::PausedForMove);
        }
        stale_userfaultfds::remove(&process)?;
        let kvm = uses_kvm(&mut client).map_err(Refusal::Qmp)?;
        let userfault = RemoteUserfault::create_in(&process, Features::FOR_DIRTY_LOG)?;
        let log =
            PagemapLog::start_unprotected(Arc::clone(userfault.userfault()), &layout, &hosts)?;
        tracing::info!(
            pid = process.pid(),
            bytes = layout.bytes(),
            "measuring the writes of a guest"
        );
        Ok(Self {
            process,
            layout,
            memory,
            log,
            userfault,
            kvm,
            notes,
            _lock: lock,
        })
    }

    /// The number of QEMU's process.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// The blocks that are measured.
    pub fn layout(&self) -> &RamLayout {
        &self.layout
    }

    /// All of the guest's memory, also if some blocks are measured only. To be read.
    pub fn memory(&self) -> &GuestRam {
        &self.memory
    }

    /// Their log. It tracks nothing yet.
    pub fn log(&self) -> &PagemapLog {
        &self.log
    }

    /// Whether the guest runs under KVM.
    pub fn uses_kvm(&self) -> bool {
        self.kvm
    }

    /// What the log does not see, for people.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Closes the log: QEMU is as before.
    ///
    /// # Errors
    ///
    /// Something could not be restored. Everything else was. A QEMU that has ended is not an error.
    pub fn stop(self) -> Result<(), StopMeasuringError> {
        let stopped = self.log.stop().map_err(StopMeasuringError::from);
        let closed = self.userfault.close_remote();
        if !self.process.is_alive() {
            return Ok(());
        }
        stopped?;
        Ok(closed?)
    }
}
