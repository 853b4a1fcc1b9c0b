//! `hikkoshi ocf-agent`, which Pacemaker calls through the resource agent `ocf:hikkoshi:guest`.

use clap::Args;

#[derive(Debug, Args)]
pub(crate) struct OcfAgent {
    /// The action: start, stop, monitor, migrate_to, migrate_from, validate-all or meta-data
    #[arg(value_name = "ACTION")]
    pub action: String,
}
