//! Both state machines, with an attacker between them who replays old messages.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| hikkoshi_fuzz::handover::replayed(bytes));
