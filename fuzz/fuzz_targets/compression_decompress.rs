//! Bytes that a peer sends as compressed pages.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| hikkoshi_fuzz::compression::decompress(bytes));
