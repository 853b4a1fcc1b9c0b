//! A TLS handshake, on either side, with a peer that has no key.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| hikkoshi_fuzz::link::tls_handshake(bytes));
