//! Measures one case: boots the guest, moves it, and has it check its memory.

mod clients;
mod domain;
mod migration;
mod scan;
mod threads;
mod timeline;
mod web;

use std::path::Path;

pub(crate) use clients::serve;
pub(crate) use threads::join;

use crate::args::Args;
use crate::plan::{Case, Kind};
use crate::record::Run;
use crate::testbed::Testbed;

/// Measures a case once. A failure is stored in the run.
pub(crate) fn measure(case: &Case, program: &Path, round: u32, args: &Args) -> Run {
    let mut run = Run::new(case, round);
    let measured = match case.workload.kind() {
        Kind::Domain => domain::measure(case, program, args, &mut run),
        kind => Testbed::boot(case, args).and_then(|testbed| {
            let measure = match kind {
                Kind::Scan => scan::measure,
                Kind::Clients => clients::measure,
                Kind::Web => web::measure,
                Kind::Move | Kind::Domain => migration::measure,
            };
            measure(case, &testbed, program, args, &mut run)
        }),
    };
    if let Err(error) = measured {
        run.failure = Some(error_reporter::Report::new(&error).to_string());
    }
    run
}
