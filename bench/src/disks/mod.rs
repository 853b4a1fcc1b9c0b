//! Guests whose disks are copied with them: `hikkoshi migrate --copy-disks` beside `virsh migrate
//! --live --copy-storage-all`. `--only disks` selects it, and nothing else; a further word selects
//! a system.
//!
//! hikkoshi does not copy the disks of libvirt's domains, so its guest is a QEMU by itself, with
//! the same machine type, memory, disk, card and workload. The guest writes to its disk at a fixed
//! rate and answers two clients. The time that its writes take is QEMU's own account of its device
//! ([`writes`]).

mod domain;
mod guest;
mod machine;
mod table;
mod writes;

use std::fmt;
use std::path::Path;

use serde::Serialize;

use self::writes::Writes;
use crate::args::Args;
use crate::error::BenchError;
use crate::mover::OwnReport;
use crate::record::{ClientsOutcome, Cost};
use crate::report::Table;
use crate::rounds::{self, Bench};
use crate::testbed::DomainHosts;

/// How `--only` selects this bench.
pub(crate) const NAME: &str = "disks";

/// What moves the guest and its disk.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
enum System {
    /// hikkoshi in its default mode.
    Hikkoshi,
    /// libvirt with its default mode of copying: in the background.
    Virsh,
    /// libvirt with `--copy-storage-synchronous-writes`.
    VirshSynchronous,
}

impl System {
    const ALL: [Self; 3] = [Self::Hikkoshi, Self::Virsh, Self::VirshSynchronous];

    /// The name in filters.
    fn name(self) -> &'static str {
        match self {
            Self::Hikkoshi => "hikkoshi",
            Self::Virsh => "virsh",
            Self::VirshSynchronous => "virsh-synchronous",
        }
    }
}

impl fmt::Display for System {
    /// The command, for tables.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Hikkoshi => "hikkoshi migrate --copy-disks",
            Self::Virsh => "virsh migrate --live --copy-storage-all",
            Self::VirshSynchronous => "the same with --copy-storage-synchronous-writes",
        })
    }
}

/// The sizes of a guest.
#[derive(Clone, Copy, Debug, Serialize)]
struct Sizes {
    /// Of its disk, MiB.
    disk_mib: u64,
    /// Of the file on it that the guest writes to, MiB. The rest holds zeros.
    file_mib: u64,
    memory_mib: u64,
}

impl Sizes {
    /// 1 GiB half full, or less with `--quick`.
    fn from_args(args: &Args) -> Self {
        match args.quick {
            true => Self {
                disk_mib: 128,
                file_mib: 48,
                memory_mib: 256,
            },
            false => Self {
                disk_mib: 1024,
                file_mib: 512,
                memory_mib: 512,
            },
        }
    }
}

/// One move.
#[derive(Clone, Debug, Serialize)]
struct Moved {
    system: System,
    round: u32,
    /// From the command to its end, ms.
    total_ms: f64,
    /// From the source's pause to the destination's start, ms.
    downtime_ms: f64,
    cost: Cost,
    clients: ClientsOutcome,
    /// The guest's writes before the move.
    before: Option<Writes>,
    /// From the command to the pause.
    during: Option<Writes>,
    /// The system's own report.
    report: OwnReport,
}

struct Disks {
    sizes: Sizes,
}

impl Bench for Disks {
    const NAME: &'static str = NAME;
    const ROUNDS: u32 = 3;

    type Case = System;
    type Outcome = Moved;

    fn cases(&self) -> Vec<System> {
        System::ALL.to_vec()
    }

    fn label(system: System) -> String {
        system.name().to_owned()
    }

    fn measure(
        &self,
        system: System,
        round: u32,
        program: &Path,
        args: &Args,
    ) -> Result<Moved, BenchError> {
        let sizes = self.sizes;
        let moved = match system {
            System::Hikkoshi => machine::moved(sizes, program, args),
            System::Virsh => domain::moved(&DomainHosts::start()?, sizes, &[], args),
            System::VirshSynchronous => {
                let options = ["--copy-storage-synchronous-writes"];
                domain::moved(&DomainHosts::start()?, sizes, &options, args)
            }
        };
        moved.map(|moved| Moved {
            system,
            round,
            ..moved
        })
    }

    fn others_cores(moved: &Moved) -> f64 {
        moved.cost.others_cores
    }

    fn line(moved: &Moved) -> String {
        table::line(moved)
    }

    fn tables(&self, moves: &[Moved]) -> Vec<Table> {
        vec![table::table(moves, self.sizes)]
    }
}

/// Runs it, and writes the results.
pub(crate) fn run(args: &Args) -> Result<(), BenchError> {
    let sizes = Sizes::from_args(args);
    rounds::run(&Disks { sizes }, args)
}
