//! A document about a host, which a peer sends.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| hikkoshi_fuzz::status::host(bytes));
