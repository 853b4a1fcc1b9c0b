//! The source's side of a migration.
//!
//! One thread, the caller of [`migrate()`], leads. It connects (`session/`), leads
//! the pre-copy rounds (`precopy/`), the switchover (`switchover/`), and what
//! follows (`handover_driver/`), where the state machine of `hikkoshi-handover` decides who
//! may run the guest. In post-copy each link has a thread that sends pages
//! (`postcopy/`): one answers page requests, the others push the rest.
//!
//! A thread sends a page only after it has claimed the page in one bitmap
//! (`unsent/`). What is sent first depends on hints that no thread waits for
//! (`postcopy/push_policy/`).

mod ask_destination;
mod bit_scan;
mod chunks;
mod context;
mod control;
mod convergence;
mod disks;
mod error;
mod give_up;
mod handover_driver;
mod least_bandwidth;
mod lifecycle;
mod migrate;
mod network_frames;
mod notify_guest_kept;
mod options;
mod postcopy;
mod precopy;
mod private_blocks;
mod probe;
mod read_log;
mod repeat_counter;
mod resume_migration;
mod session;
mod switchover;
mod unsent;

pub use ask_destination::{Comparison, compare};
pub use context::MigrateControl;
pub use control::{ControlRefused, LimitChange, MigrationLimits, SourceControl};
pub use convergence::{Convergence, MAX_DOWNTIME, NotConverging};
pub use error::{MigrateError, SourceFailure};
pub use give_up::give_up_migrate;
pub use least_bandwidth::BandwidthTooLow;
pub use migrate::migrate;
pub use options::{ReadAhead, SourceOptions, WhenStalled};
pub use probe::{ProbeOptions, ProbedLine, probe};
pub use resume_migration::resume_migrate;
