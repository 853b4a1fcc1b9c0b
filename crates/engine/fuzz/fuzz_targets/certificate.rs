//! A certificate that a peer shows in the handshake.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| hikkoshi_link::tls::fuzzing::certificate(bytes));
