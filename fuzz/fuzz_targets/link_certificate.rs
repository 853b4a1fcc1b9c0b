//! A certificate that a peer presents in the handshake.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| hikkoshi_fuzz::link::certificate(bytes));
