//! The destination's state machine, with any messages from its source.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| hikkoshi_fuzz::handover::destination(bytes));
