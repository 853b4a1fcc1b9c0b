//! The guest's switch for KVM's asynchronous page faults, in a saved device state.

use super::SavedDevices;

/// `QEMU_VM_SUBSECTION`, then the name behind its length, and the version
/// (`vmstate_async_pf_msr` in QEMU's `target/i386/machine.c`). The register's eight bytes follow.
/// QEMU leaves the subsection out if the register is 0.
const SUBSECTION: &[u8] = b"\x05\x10cpu/async_pf_msr\0\0\0\x01";

/// `KVM_ASYNC_PF_ENABLED` and `KVM_ASYNC_PF_DELIVERY_AS_INT` of `MSR_KVM_ASYNC_PF_EN`: without the
/// second, KVM does nothing.
const ON: u64 = 1 | 8;

impl SavedDevices<'_> {
    /// How many virtual processors have asynchronous page faults switched on.
    ///
    /// Only for people: the guest can put bytes into a processor's state that look like the end of
    /// it, or like this switch.
    pub fn asynchronous_faults(&self) -> Option<usize> {
        let sections = self.sections().ok()?;
        let processors = sections.iter().filter(|section| section.name == "cpu");
        Some(processors.filter(|cpu| is_on(cpu.payload)).count())
    }
}

/// The subsections follow the registers that the guest can choose freely: the last match counts.
fn is_on(processor: &[u8]) -> bool {
    let mut windows = processor.windows(SUBSECTION.len() + 8).rev();
    let found = windows.find_map(|window| window.strip_prefix(SUBSECTION));
    let register = found.and_then(|bytes| bytes.try_into().ok());
    register.is_some_and(|bytes| u64::from_be_bytes(bytes) & ON == ON)
}

#[cfg(test)]
mod tests {
    use super::is_on;
    use crate::stream::SavedDevices;
    use crate::stream::tests::saved;

    fn processor(register: u64) -> Vec<u8> {
        let subsection: [&[u8]; 3] = [
            b"registers\x05\x10cpu/async_pf_msr\0\0\0\x01",
            &register.to_be_bytes(),
            b"\x05\x07cpu/xss\0\0\0\x01\0\0\0\0\0\0\0\0",
        ];
        subsection.concat()
    }

    #[test]
    fn processors_with_the_switch_are_counted() {
        let on = 0x1234_5649;
        assert!(is_on(&processor(on)));
        for off in [0, on - 1, on - 8] {
            assert!(!is_on(&processor(off)));
        }
        // What the guest has put into a register before does not count.
        assert!(!is_on(&[processor(on), processor(0)].concat()));
        let whole = processor(on);
        assert!(!is_on(&whole[..38]), "it is cut off");
        let devices = [
            (1, "timer", 0, on),
            (2, "cpu", 0, on),
            (3, "cpu_common", 0, on),
            (4, "cpu", 1, 0),
            (5, "cpu", 2, on),
        ];
        let devices = devices.map(|(id, name, instance, register)| {
            (
                0x7177_0000 + id,
                name.to_owned(),
                instance,
                12,
                processor(register),
            )
        });
        let bytes = saved(&devices);
        let count = SavedDevices::parse(&bytes).unwrap().asynchronous_faults();
        assert_eq!(count, Some(2));
    }
}
