//! Whatever a peer sends: the same properties as the crate's property tests.
//!
//! ```text
//! cd crates/wire
//! mkdir -p fuzz/corpus/stream
//! cargo +nightly fuzz run stream fuzz/corpus/stream fuzz/seeds/stream
//! ```
//!
//! What it finds goes to `fuzz/corpus`, which is not kept. `fuzz/seeds` is:
//! it holds every message once, written by the crate's `golden` test.

#![no_main]

use libfuzzer_sys::fuzz_target;

#[allow(dead_code)] // Some of it is for the property tests only.
#[path = "../../tests/properties/mod.rs"]
mod properties;

fuzz_target!(|bytes: &[u8]| properties::check(bytes));
