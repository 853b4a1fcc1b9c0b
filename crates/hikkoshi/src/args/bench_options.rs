//! Options of `migrate` that only benchmarks and tests need.

use clap::Args;

/// What a measurement switches off, or does in another way.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct BenchOptions {
    /// Post-copy: do not send frequently written pages first
    #[arg(long, hide = true)]
    pub no_hot_first: bool,

    /// Post-copy: do not limit background bytes in flight
    #[arg(long, hide = true)]
    pub no_in_flight_limit: bool,

    /// Post-copy: send no background pages for this long after the switchover
    #[arg(
        long,
        value_name = "MS",
        value_parser = clap::value_parser!(u64).range(..=3_600_000),
        hide = true
    )]
    pub background_delay: Option<u64>,

    /// Do not drain the guest's disks in pre-copy rounds. LOSES MEMORY of guests with direct I/O
    #[arg(long, hide = true)]
    pub no_drain: bool,
}
