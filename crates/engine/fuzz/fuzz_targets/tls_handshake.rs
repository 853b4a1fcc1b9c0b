//! A TLS handshake, at either side.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| hikkoshi_link::tls::fuzzing::tls_handshake(bytes));
