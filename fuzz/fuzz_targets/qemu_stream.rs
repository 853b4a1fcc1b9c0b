//! What `xen-save-devices-state` writes.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| hikkoshi_fuzz::qemu::stream(bytes));
