//! All bytes that a peer sends on a link.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| hikkoshi_fuzz::wire::stream(bytes));
