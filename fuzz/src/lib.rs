//! The functions that the fuzz targets call, grouped by the crate that they test. The crates' own
//! tests run the same functions on random input and on the corpora.

#[path = "../../crates/handover/tests/machines/fuzzing.rs"]
pub mod handover;
#[path = "../../crates/wire/tests/properties/mod.rs"]
pub mod wire;

pub use hikkoshi_link::tls::fuzzing as link;
pub use hikkoshi_qemu::fuzzing as qemu;
