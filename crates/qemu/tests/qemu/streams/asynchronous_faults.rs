//! The guest's switch for asynchronous page faults, in what a real QEMU saves.

use std::fs;

use hikkoshi_qemu::stream::SavedDevices;

use crate::support::{Qemu, eventually, print_always, with_each};

use super::compare::save;

/// Firmware that switches them on: `MSR_KVM_ASYNC_PF_INT` (the interrupt), then
/// `MSR_KVM_ASYNC_PF_EN` (1 MiB, enabled, by interrupt).
const SWITCH_ON: &[u8] = &[
    0x66, 0xb9, 0x06, 0x4d, 0x56, 0x4b, // mov ecx, 0x4b564d06
    0x66, 0x31, 0xd2, // xor edx, edx
    0x66, 0xb8, 0xf0, 0x00, 0x00, 0x00, // mov eax, 0xf0
    0x0f, 0x30, // wrmsr
    0x66, 0xb9, 0x02, 0x4d, 0x56, 0x4b, // mov ecx, 0x4b564d02
    0x66, 0xb8, 0x09, 0x00, 0x10, 0x00, // mov eax, 0x100009
    0x0f, 0x30, // wrmsr
    0xfa, // cli
    0xf4, // hlt
    0xeb, 0xfd, // jmp to hlt
];

const FIRMWARE_BYTES: usize = 64 << 10;

/// Where a processor starts: `jmp` to the first byte.
const RESET: usize = 0xfff0;
const JUMP: &[u8] = &[0xe9, 0x0d, 0x00];

#[test]
fn the_guests_switch_is_in_the_saved_state() {
    let folder = tempfile::tempdir().unwrap();
    let firmware = folder.path().join("firmware");
    let mut bytes = vec![0xf4; FIRMWARE_BYTES];
    bytes[..SWITCH_ON.len()].copy_from_slice(SWITCH_ON);
    bytes[RESET..RESET + JUMP.len()].copy_from_slice(JUMP);
    fs::write(&firmware, bytes).unwrap();
    let firmware = firmware.display();
    let count = |qemu: &Qemu| {
        let saved = save(&mut qemu.client(), &folder.path().join("saved"), false);
        SavedDevices::parse(&saved).unwrap().asynchronous_faults()
    };
    with_each(|program| {
        let line = format!("-cpu host,arch-capabilities=off -smp 2 -bios {firmware} -S");
        let Some(qemu) = Qemu::usual_under(program, "kvm", &line) else {
            return print_always("NOT TESTED: there is no /dev/kvm");
        };
        assert_eq!(count(&qemu), Some(0));
        qemu.execute("cont", serde_json::json!({}));
        // The second processor waits for the first one to start it.
        eventually("the guest's switch", || count(&qemu) == Some(1));
    });
}
