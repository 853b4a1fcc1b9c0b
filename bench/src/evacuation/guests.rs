//! The guests that are moved.

use hikkoshi_lab::{GuestReport, Pattern, Ram, RamBackend, Verdict, Vm, VmConfig, Workload};

use crate::error::BenchError;
use crate::testbed::LONG;

/// Memory of a guest beyond what its workload fills, MiB.
const BESIDE_MIB: u64 = 128;

/// What a guest is and does.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kind {
    /// Its name.
    pub(super) name: &'static str,
    /// Memory that its workload fills, MiB.
    mib: u64,
    /// Pages that it checks and writes, a second; `None`: it is idle.
    rate: Option<u64>,
    /// Whether nine of ten writes are to a tenth of the pages.
    has_hotspot: bool,
    /// Whether its content compresses about three times; other content does not.
    is_compressible: bool,
}

const fn kind(name: &'static str, mib: u64, rate: Option<u64>) -> Kind {
    Kind {
        name,
        mib,
        rate,
        has_hotspot: false,
        is_compressible: false,
    }
}

/// Eight guests of different sizes and loads, in the order of their names.
pub(super) const KINDS: [Kind; 8] = [
    kind("archive", 384, None),
    kind("build", 256, Some(2000)),
    Kind {
        has_hotspot: true,
        is_compressible: true,
        ..kind("cache", 192, Some(3000))
    },
    kind("db", 320, Some(500)),
    kind("idle", 64, None),
    Kind {
        is_compressible: true,
        ..kind("logs", 96, Some(300))
    },
    Kind {
        is_compressible: true,
        ..kind("mail", 256, None)
    },
    kind("web", 128, Some(1000)),
];

/// The guest that waits for pages in `urgent.rs`.
pub(super) const MEASURED: Kind = kind("measured", 192, Some(4000));

/// Those that are moved meanwhile: more than it has, which cannot be compressed.
pub(super) const OTHERS: [Kind; 2] = [kind("other1", 512, None), kind("other2", 512, None)];

impl Kind {
    /// The machine.
    pub(super) fn config(&self) -> VmConfig {
        let workload = match self.rate {
            Some(rate) => Workload::verify(self.mib).rate(rate),
            None => Workload::scan(self.mib),
        };
        let workload = match self.has_hotspot {
            true => workload.pattern(Pattern::Hotspot),
            false => workload,
        };
        let workload = match self.is_compressible {
            true => workload.option("repeat", 1),
            false => workload,
        };
        VmConfig::new()
            .ram(Ram::new(RamBackend::Anonymous, self.mib + BESIDE_MIB))
            .workload(workload)
    }

    /// Has the guest check every byte that it wrote.
    pub(super) fn check(&self, guest: &Vm) -> Result<(), BenchError> {
        let (ok, bad) = match self.rate {
            Some(_) => {
                let Verdict { ok, bad, .. } = guest.sweep(LONG)?;
                (ok, bad)
            }
            None => {
                let first = guest.console().len();
                guest.send("scan")?;
                guest.wait_report("the end of the scan", first, LONG, |report| match report {
                    GuestReport::Scanned(scanned) => Some((scanned.ok, scanned.bad)),
                    _ => None,
                })?
            }
        };
        match ok {
            true => Ok(()),
            false => Err(BenchError::BadPages(bad)),
        }
    }
}
