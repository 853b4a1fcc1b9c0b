//! Records of a peer that has the keys.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| hikkoshi_link::tls::fuzzing::tls_records(bytes));
