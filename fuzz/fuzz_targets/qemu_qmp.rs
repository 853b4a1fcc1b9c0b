//! QMP: bytes to lines, lines to messages.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| hikkoshi_fuzz::qemu::qmp(bytes));
