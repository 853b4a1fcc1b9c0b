//! Whatever a peer sends on a link: the same properties as the crate's property
//! tests.
//!
//! `fuzz/seeds/stream` holds every message once, written by the crate's `golden`
//! test; `fuzz/corpus` what the fuzzer found worth keeping, as the smallest set
//! that reaches the same code. `make fuzz` begins with both, and the property
//! tests run through them too. What new inputs it finds go to `fuzz/found`,
//! which is not kept.

#![no_main]

use libfuzzer_sys::fuzz_target;

#[allow(dead_code)] // Some of it is for the property tests only.
#[path = "../../tests/properties/mod.rs"]
mod properties;

fuzz_target!(|bytes: &[u8]| properties::check(bytes));
