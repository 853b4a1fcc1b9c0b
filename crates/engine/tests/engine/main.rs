//! Whole migrations in one process, with guests, links and peers that fail on demand.

#![allow(missing_docs)]
// A failing test may panic, and prints the reason on standard error.
#![allow(
    clippy::unwrap_used,
    clippy::print_stderr,
    clippy::cast_possible_truncation
)]

mod adapter_failures;
mod claim_race;
mod compression;
mod control;
mod convergence;
mod destination_options;
mod direct_io;
mod direct_io_device;
mod external_access;
mod guests;
mod heap;
mod interruption;
mod left_to_do;
mod live_state;
mod machine;
mod memory;
mod message_policy;
mod modes;
mod multiple_links;
mod network;
mod network_frames;
mod peers;
mod processors;
mod push_order;
mod recovery;
mod repeats;
mod run;
mod sandbox;
mod tampering;
mod tls;
