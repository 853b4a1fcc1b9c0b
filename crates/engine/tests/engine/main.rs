//! Whole migrations inside one process, with guests, links and peers that fail
//! on demand.

#![allow(missing_docs)]
// A test that fails may panic, and says why on standard error.
#![allow(
    clippy::unwrap_used,
    clippy::print_stderr,
    clippy::cast_possible_truncation
)]

mod confined;
mod destinations;
mod device;
mod direct_io;
mod failures;
mod guests;
mod held;
mod links;
mod machine;
mod memory;
mod modes;
mod peers;
mod processors;
mod push_order;
mod recovery;
mod relay;
mod run;
mod secure;
mod several_links;
mod stress;
mod touched;
mod wire;
