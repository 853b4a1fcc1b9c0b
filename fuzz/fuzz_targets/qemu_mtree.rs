//! The answer to `info mtree -f -o`.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| hikkoshi_fuzz::qemu::mtree(bytes));
