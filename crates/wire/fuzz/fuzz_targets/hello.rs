//! The first bytes on every link.

#![no_main]

use libfuzzer_sys::fuzz_target;

#[allow(dead_code)] // Some of it is for the property tests only.
#[path = "../../tests/properties/mod.rs"]
mod properties;

fuzz_target!(|bytes: &[u8]| properties::hello(bytes));
