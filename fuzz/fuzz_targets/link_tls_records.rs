//! TLS records of a peer that has the keys.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| hikkoshi_fuzz::link::tls_records(bytes));
