//! Attaches to a machine whose monitor is not available yet.

use std::io::{self, BufRead, BufReader};
use std::ops::Range;
use std::sync::Arc;

use hikkoshi_engine::CancelFlag;
use hikkoshi_linux::Process;
use hikkoshi_memory::GuestRam;
use hikkoshi_pages::PAGE_BYTES;
use hikkoshi_wire::{GuestDescription, Machine, Processors};

use super::{PipedError, PipedMachine, hold};
use crate::attach::inspect::check_kernel;
use crate::attach::preflight::started_devices;
use crate::attach::{AttachError, Attached, Overcommit};
use crate::destination::QemuDestination;
use crate::identity::QemuIdentity;
use crate::process;
use crate::process::exclusive_access;
use crate::process::reopen::FileAccess;
use crate::qmp::Monitor;
use crate::ram::RamError;
use crate::ram::blocks::RamBlockInfo;
use crate::ram::{enough_memory, file, sharing};

/// The guest that the machine was made for, as its source describes it. The owner has made the
/// machine from the source's description, and QEMU checks each part when it loads the device state.
#[derive(Debug)]
pub struct PipedGuest<'a> {
    /// The machine.
    pub description: &'a GuestDescription,
    /// Its processors.
    pub processors: Processors,
    /// Its devices.
    pub machine: Machine,
}

impl QemuDestination {
    /// Attaches to a machine that its owner has started with a pipe as its incoming stream.
    /// `monitor` is used from the time when the guest runs.
    ///
    /// # Errors
    ///
    /// See [`AttachError`]. The machine was ended.
    pub fn attach_piped(
        mut machine: PipedMachine,
        guest: PipedGuest<'_>,
        monitor: Arc<dyn Monitor>,
        overcommit: Overcommit,
        cancel: &CancelFlag,
    ) -> Result<Self, AttachError> {
        match attach(&mut machine, &guest, &*monitor, overcommit, cancel) {
            Ok((qemu, identity)) => {
                let stream = machine.into_stream();
                let path = stream.path();
                let destination = Self::from_attached(qemu, identity, monitor, Some(stream));
                destination
                    .reattach_info
                    .change(|info| info.pipe = Some(path));
                Ok(destination)
            }
            Err(error) => {
                // The pipe is removed with it.
                machine.end();
                Err(error)
            }
        }
    }
}

fn attach(
    machine: &mut PipedMachine,
    guest: &PipedGuest<'_>,
    monitor: &dyn Monitor,
    overcommit: Overcommit,
    cancel: &CancelFlag,
) -> Result<(Attached, QemuIdentity), AttachError> {
    let process = Arc::clone(&machine.process);
    process::check_right_to_trace(&process)?;
    check_kernel()?;
    let addresses = machine.begin(guest.description, cancel).map_err(Box::new)?;
    // From here on the process is certainly QEMU, and not a script that executes it.
    let given = machine.pipe.give_to(&process);
    given.map_err(|source| Box::new(PipedError::Pipe { source }))?;
    // A security module may forbid it: not when the guest is paused.
    hold::check(&process, &machine.pipe).map_err(Box::new)?;
    let devices = started_devices::check(&process)
        .map_err(|source| process::explain(&process, "reading the command line", source))?;
    if !devices.is_empty() {
        let obstacles = devices.into_iter().map(AttachError::Refused);
        return Err(AttachError::from_obstacles(obstacles.collect()));
    }
    let lock = exclusive_access::acquire(&process)?;
    let areas = process::areas(&process)?;
    let mut description = guest.description.clone();
    let mut found = Vec::new();
    let sizes = page_sizes(&process)
        .map_err(|source| process::explain(&process, "reading the page sizes", source))?;
    for (block, &address) in description.blocks.iter_mut().zip(&addresses) {
        let mapping = sizes.iter().find(|(range, _)| range.contains(&address));
        block.host_page = mapping.map_or(PAGE_BYTES, |(_, size)| *size);
        let info = RamBlockInfo {
            name: block.id.clone(),
            page_size: block.host_page,
            offset: 0,
            used: block.bytes,
            total: block.bytes,
            host: Some(address),
            read_only: None,
        };
        let memory = file::open(&process, &areas, &info, address, FileAccess::Write)?;
        if let Some(warning) = &memory.exposed {
            tracing::warn!("{warning}");
        }
        found.push((info, memory));
    }
    // libvirt reserves no memory beforehand, except with preallocation, which has allocated it.
    let blocks = found.iter().map(|(info, memory)| (info, memory, false));
    let mut warnings = Vec::new();
    if let Err(shortage) = enough_memory::check(&process, blocks, &mut warnings)
        && !(overcommit == Overcommit::Allow && shortage.is_overcommit())
    {
        return Err(RamError::NotEnoughMemory(shortage).into());
    }
    let layout = description.layout().map_err(RamError::from)?;
    let backings = found
        .into_iter()
        .map(|(_, memory)| memory.backing)
        .collect();
    let ram = GuestRam::new(layout, backings).ok_or(RamError::None)?;
    let in_use = sharing::check(&process, &ram, &mut warnings).into_iter();
    let in_use: Vec<_> = in_use.map(Into::into).collect();
    for warning in warnings {
        tracing::warn!("{warning}");
    }
    if !in_use.is_empty() {
        return Err(AttachError::from_obstacles(in_use));
    }
    let attached = Attached {
        client: None,
        process,
        ram: Arc::new(ram),
        addresses,
        description,
        name: None,
        processors: guest.processors.clone(),
        lock,
        machine: guest.machine.clone(),
        drains: false,
    };
    let identity = QemuIdentity::of_attached(monitor, &attached)?;
    Ok((attached, identity))
}

/// The size of the pages of each mapping, in bytes, by its range of addresses.
fn page_sizes(process: &Process) -> io::Result<Vec<(Range<u64>, u64)>> {
    let mut sizes = Vec::new();
    let mut range = 0..0;
    for line in BufReader::new(process.open_proc("smaps")?).lines() {
        let line = line?;
        let mut words = line.split_whitespace();
        let first = words.next().unwrap_or_default();
        if let Some(size) = first.strip_prefix("KernelPageSize:") {
            let kilobytes = words.next().unwrap_or(size).parse().unwrap_or(0);
            sizes.push((range.clone(), kilobytes << 10));
        } else if let Some((start, end)) = first.split_once('-')
            && let (Ok(start), Ok(end)) =
                (u64::from_str_radix(start, 16), u64::from_str_radix(end, 16))
        {
            range = start..end;
        }
    }
    Ok(sizes)
}

impl From<Box<PipedError>> for AttachError {
    fn from(error: Box<PipedError>) -> Self {
        Self::Owner(error)
    }
}
