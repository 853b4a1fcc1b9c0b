//! The source's state machine, with any messages from its destination.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| hikkoshi_fuzz::handover::source(bytes));
