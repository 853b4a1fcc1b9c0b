//! The region divided among the workers of the chosen workload.

use crate::clock::Clock;
use crate::dirty::Dirty;
use crate::lockstep::Lockstep;
use crate::options::{Memory, Options};
use crate::page;
use crate::region::Region;
use crate::scan::Scan;
use crate::verify::Verify;
use crate::worker::Workload;
use std::io;

pub(crate) const PAGES_PER_MIB: usize = (1 << 20) / page::PAGE_SIZE;

/// Creates the workers' parts of the chosen workload.
pub(crate) fn create_workloads(
    options: &Options,
    clock: Clock,
) -> io::Result<Vec<Box<dyn Workload>>> {
    if options.memory == Memory::Idle {
        return Ok(Vec::new());
    }
    let region = Region::resident(options.mib * PAGES_PER_MIB)?;
    if options.memory == Memory::Scan {
        return Ok(region
            .split(options.threads)
            .map(|part| Box::new(Scan::new(part, options.filled())) as Box<dyn Workload>)
            .collect());
    }
    if options.memory == Memory::Lockstep {
        return Ok(Lockstep::all(region, options.threads)
            .map(|worker| Box::new(worker) as Box<dyn Workload>)
            .collect());
    }
    let pages = region.interleave(options.threads);
    if options.memory == Memory::Dirty {
        return Ok(pages
            .map(|part| Box::new(Dirty::new(part, options)) as Box<dyn Workload>)
            .collect());
    }
    let growth = match options.grow {
        0 => 1, // a mapping cannot be empty; without growth it stays untouched
        _ => options.grow_max * PAGES_PER_MIB,
    };
    let growth = Region::untouched(growth)?.interleave(options.threads);
    Ok(pages
        .zip(growth)
        .map(|(part, growth)| {
            Box::new(Verify::new(part, growth, options, clock)) as Box<dyn Workload>
        })
        .collect())
}
