//! Both machines, and somebody between them who lets old words be heard again.

#![no_main]

use libfuzzer_sys::fuzz_target;

#[allow(dead_code)] // Each target is one of its functions.
#[path = "../../../handover/tests/machines/fuzzing.rs"]
mod fuzzing;

fuzz_target!(|bytes: &[u8]| fuzzing::replayed(bytes));
