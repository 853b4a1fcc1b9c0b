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
use crate::host_info::HostInfo;
use crate::meter::quietest;
use crate::mover::OwnReport;
use crate::record::{ClientsOutcome, Cost};
use crate::report::write_file;
use crate::testbed::DomainHosts;

/// How `--only` selects this bench.
const NAME: &str = "disks";

/// Rounds, unless `--rounds` says something else.
const ROUNDS: u32 = 3;

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

/// Everything that was measured, as JSON.
#[derive(Debug, Serialize)]
struct Results<'a> {
    host: &'a HostInfo,
    sizes: Sizes,
    moves: &'a [Moved],
    failures: &'a [String],
}

/// Whether the arguments select this bench.
pub(crate) fn is_selected(args: &Args) -> bool {
    args.only.iter().any(|words| words == NAME)
}

/// Runs it, and writes the results.
pub(crate) fn run(args: &Args) -> Result<(), BenchError> {
    let is_wanted = |system: &System| {
        let mut words = args.only.iter().filter(|words| *words != NAME);
        words.all(|words| words.split(',').any(|word| word == system.name()))
    };
    let systems: Vec<_> = System::ALL.into_iter().filter(is_wanted).collect();
    if args.list {
        for system in &systems {
            println!("{NAME}: {}", system.name());
        }
        return Ok(());
    }
    let program = args.program()?;
    let host = HostInfo::collect(args.congestion.as_deref());
    let sizes = Sizes::from_args(args);
    println!("{host}\n");
    let rounds = args.rounds.unwrap_or(if args.quick { 1 } else { ROUNDS });
    let (mut moves, mut failures) = (Vec::new(), Vec::new());
    for round in 0..rounds {
        for &system in &systems {
            match attempt(system, round, sizes, &program, args) {
                Ok(moved) => {
                    println!("round {} {}", round + 1, table::line(&moved));
                    moves.push(moved);
                }
                Err(error) => {
                    let error = error_reporter::Report::new(&error);
                    let failure = format!("round {} {}: {error}", round + 1, system.name());
                    println!("{failure}");
                    failures.push(failure);
                }
            }
            // After every move, so that an interrupted bench keeps its results.
            let results = Results {
                host: &host,
                sizes,
                moves: &moves,
                failures: &failures,
            };
            let json = serde_json::to_string_pretty(&results).unwrap_or_default();
            write_file(&args.json, &json)?;
        }
    }
    let table = table::table(&moves, sizes);
    println!("\n{}", table.text());
    write_file(
        &args.plots.join("disks.md"),
        &format!("{host}\n\n{}", table.markdown()),
    )?;
    match failures.len() {
        0 => Ok(()),
        failed => Err(BenchError::Failed {
            failed,
            total: failed + moves.len(),
        }),
    }
}

/// Measures a system, and repeats it while other processes use the machine; the move with the least
/// interference counts.
fn attempt(
    system: System,
    round: u32,
    sizes: Sizes,
    program: &Path,
    args: &Args,
) -> Result<Moved, BenchError> {
    let measure = || {
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
    };
    quietest(
        args,
        measure,
        |moved: &Result<Moved, BenchError>| match moved {
            Ok(moved) => moved.cost.others_cores,
            Err(_) => f64::INFINITY,
        },
    )
}
