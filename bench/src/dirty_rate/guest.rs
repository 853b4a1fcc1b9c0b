//! Guests that write at known rates.

use std::fmt;
use std::fs::File;

use hikkoshi_lab::{Pattern, Ram, RamBackend, VmConfig, Workload};
use serde::Serialize;

use super::float;
use crate::plan::{RAM_MIB, REPORT_MS, WORKING_SET_MIB};

/// What the guest writes.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
pub(crate) enum Writer {
    /// Random pages of 600 MiB, as fast as it can, emulated. Its memory is a shared file, without
    /// huge pages.
    Random,
    /// Random pages of 600 MiB of private memory in transparent huge pages, emulated.
    PrivateRandom,
    /// Pages of 600 MiB of a shared file, with 90 % of the writes to 10 % of them, emulated.
    Hotspot,
    /// 20,000 random pages of 600 MiB a second, emulated.
    Paced,
    /// Random pages of 600 MiB as fast as it can, with the nano guest under KVM.
    NanoRandom,
}

/// Pages that the guest writes to.
const PAGES: u64 = WORKING_SET_MIB << 8;

impl Writer {
    pub(super) const ALL: [Self; 5] = [
        Self::Random,
        Self::PrivateRandom,
        Self::Hotspot,
        Self::Paced,
        Self::NanoRandom,
    ];

    /// Whether this host has what it needs.
    pub(super) fn is_possible(self) -> bool {
        self != Self::NanoRandom || File::options().write(true).open("/dev/kvm").is_ok()
    }

    pub(super) fn config(self) -> VmConfig {
        let workload = Workload::dirty(WORKING_SET_MIB).option("every_ms", REPORT_MS);
        let workload = match self {
            Self::Random | Self::PrivateRandom | Self::NanoRandom => {
                workload.pattern(Pattern::Random)
            }
            Self::Hotspot => workload.pattern(Pattern::Hotspot),
            Self::Paced => workload.pattern(Pattern::Random).rate(20_000),
        };
        let backend = match self {
            Self::PrivateRandom => RamBackend::Anonymous,
            _ => RamBackend::File { share: true },
        };
        let config = VmConfig::new()
            .ram(Ram::new(backend, RAM_MIB))
            .workload(workload);
        match self {
            Self::NanoRandom => config.kvm().nano(),
            _ => config,
        }
    }

    /// The number of different pages of `accesses` writes a second, in this many seconds. Of `n`
    /// pages that are written at random `w` times in all, `n (1 - e^(-w / n))` are written at least
    /// once.
    pub(super) fn different_pages(self, accesses: f64, seconds: f64) -> f64 {
        let writes = accesses * seconds;
        let written = |pages: f64, writes: f64| pages * (1.0 - (-writes / pages).exp());
        let all = float(PAGES);
        match self {
            Self::Hotspot => {
                let hot = float(PAGES.div_ceil(10));
                let share = 0.9 + 0.1 * hot / all;
                written(hot, writes * share) + written(all - hot, writes * (1.0 - share))
            }
            _ => written(all, writes),
        }
    }
}

impl fmt::Display for Writer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Random => "random",
            Self::PrivateRandom => "private-random",
            Self::Hotspot => "hotspot",
            Self::Paced => "paced",
            Self::NanoRandom => "nano-random",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_writes_are_different_pages_and_many_are_all() {
        for writer in Writer::ALL {
            let few = writer.different_pages(100.0, 1.0);
            assert!((99.0..=100.0).contains(&few), "{few}");
            let many = writer.different_pages(1e9, 1.0);
            assert!((many - 153_600.0).abs() < 1.0, "{many}");
        }
        assert!(
            Writer::Hotspot.different_pages(1e5, 1.0) < Writer::Random.different_pages(1e5, 1.0)
        );
    }
}
