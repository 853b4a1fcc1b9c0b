//! The functions that the fuzz targets call, grouped by the crate that they test. The crates' own
//! tests run the same functions on random input and on the corpora.

pub use hikkoshi_link::compression_fuzzing as compression;
pub use hikkoshi_link::tls::fuzzing as link;
pub use hikkoshi_qemu::fuzzing as qemu;

#[allow(dead_code)] // The property tests use more of it.
#[path = "../../crates/handover/tests/machines/fuzzing.rs"]
mod handover_tests;
#[path = "../../crates/status/tests/documents/fuzzing.rs"]
mod status_tests;
#[allow(dead_code)]
#[path = "../../crates/wire/tests/properties/mod.rs"]
mod wire_tests;

/// Messages for both state machines.
pub mod handover {
    use super::handover_tests as tests;

    pub fn source(bytes: &[u8]) {
        tests::source(bytes);
    }

    pub fn destination(bytes: &[u8]) {
        tests::destination(bytes);
    }

    pub fn replayed(bytes: &[u8]) {
        tests::replayed(bytes);
    }
}

/// Everything that is read from a link.
pub mod wire {
    use super::wire_tests as tests;

    pub fn hello(bytes: &[u8]) {
        tests::hello(bytes);
    }

    pub fn header(bytes: &[u8]) {
        tests::header(bytes);
    }

    pub fn to_destination(bytes: &[u8]) {
        tests::control::<hikkoshi_wire::ToDestination>(bytes);
    }

    pub fn to_source(bytes: &[u8]) {
        tests::control::<hikkoshi_wire::ToSource>(bytes);
    }

    pub fn stream(bytes: &[u8]) {
        tests::check(bytes);
    }
}

/// What a host says of itself.
pub mod status {
    pub fn host(bytes: &[u8]) {
        super::status_tests::host(bytes);
    }
}
