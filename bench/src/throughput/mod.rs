//! How many bytes of guest memory a second, and for how much processor time: pre-copy and post-copy
//! by hikkoshi beside QEMU's pre-copy, multifd and post-copy with preemption. `--only throughput`
//! selects it; further words select cases.
//!
//! The guest is idle: nothing is sent twice. Its memory holds random content, which cannot be
//! compressed, or content that can. It checks every byte after the move.

mod case;
mod moved;
mod table;

use std::path::Path;

use self::case::Case;
use self::moved::{Moved, Sizes, moved};
use crate::args::Args;
use crate::error::BenchError;
use crate::report::Table;
use crate::rounds::{self, Bench};

impl Sizes {
    /// 2 GiB, or less with `--quick`.
    fn from_args(args: &Args) -> Self {
        match args.quick {
            true => Self {
                memory_mib: 512,
                filled_mib: 320,
            },
            false => Self {
                memory_mib: 2304,
                filled_mib: 2048,
            },
        }
    }
}

struct Throughput {
    sizes: Sizes,
}

impl Bench for Throughput {
    const NAME: &'static str = NAME;
    const ROUNDS: u32 = 5;

    type Case = Case;
    type Outcome = Moved;

    fn cases(&self) -> Vec<Case> {
        case::all()
    }

    fn label(case: Case) -> String {
        case.to_string()
    }

    fn measure(
        &self,
        case: Case,
        round: u32,
        program: &Path,
        args: &Args,
    ) -> Result<Moved, BenchError> {
        moved(case, round, self.sizes, program, args)
    }

    fn others_cores(moved: &Moved) -> f64 {
        moved.others_cores
    }

    fn line(moved: &Moved) -> String {
        table::line(moved)
    }

    fn tables(&self, moves: &[Moved]) -> Vec<Table> {
        table::tables(moves, self.sizes)
    }
}

/// How `--only` selects this bench.
pub(crate) const NAME: &str = "throughput";

/// Runs it, and writes the results.
pub(crate) fn run(args: &Args) -> Result<(), BenchError> {
    let sizes = Sizes::from_args(args);
    rounds::run(&Throughput { sizes }, args)
}
