//! `hikkoshi demo`.

use std::path::PathBuf;

use clap::Args;
use hikkoshi_engine::Mode;

use super::mode;

#[derive(Debug, Args)]
pub(crate) struct Demo {
    /// Migration mode: precopy, postcopy or hybrid
    #[arg(long, value_name = "MODE", default_value_t = Mode::Hybrid, value_parser = mode::parse)]
    pub mode: Mode,

    /// The guest's memory in MiB; its workload writes to half of it all the time
    #[arg(
        long,
        value_name = "MIB",
        default_value_t = 512,
        value_parser = clap::value_parser!(u64).range(256..=16_384)
    )]
    pub memory: u64,

    /// Where to write the report
    #[arg(long, value_name = "FILE", default_value = "hikkoshi-demo.html")]
    pub report: PathBuf,

    /// QEMU version on both sides: 7.2 or 10.0
    #[arg(long, value_name = "VERSION", default_value = "10.0")]
    pub qemu: String,
}
