//! The device state: everything of the machine that is not in its memory, as it is sent.
//!
//! The structures of KVM's interface are stored as they are: the kernel never changes them.

use kvm_bindings::{
    CpuId, KVM_MAX_CPUID_ENTRIES, Msrs, kvm_cpuid_entry2, kvm_debugregs, kvm_irqchip,
    kvm_lapic_state, kvm_mp_state, kvm_msr_entry, kvm_regs, kvm_sregs, kvm_vcpu_events, kvm_xcrs,
    kvm_xsave,
};
use kvm_ioctls::{Kvm, VcpuFd, VmFd};
use serde::{Deserialize, Serialize};

use crate::Result;
use crate::monitor::ports::SavedPorts;

/// The machine.
#[derive(Serialize, Deserialize)]
pub(crate) struct SavedMachine {
    pub(crate) vcpus: Vec<SavedVcpu>,
    pub(crate) interrupt_controllers: Vec<SavedInterruptController>,
    /// KVM's clock when the guest was paused, in nanoseconds.
    pub(crate) clock: u64,
    pub(crate) ports: SavedPorts,
}

/// A virtual processor.
#[derive(Serialize, Deserialize)]
pub(crate) struct SavedVcpu {
    features: Vec<kvm_cpuid_entry2>,
    tsc_khz: u32,
    run_state: kvm_mp_state,
    registers: kvm_regs,
    special_registers: kvm_sregs,
    extended_state: kvm_xsave,
    extended_control: kvm_xcrs,
    debug_registers: kvm_debugregs,
    local_apic: kvm_lapic_state,
    /// In the order in which they are restored.
    msrs: Vec<SavedMsr>,
    events: kvm_vcpu_events,
}

/// A model-specific register.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct SavedMsr {
    index: u32,
    value: u64,
}

/// One of KVM's three interrupt controllers.
#[derive(Serialize, Deserialize)]
pub(crate) struct SavedInterruptController(kvm_irqchip);

/// Restored after all others: switching asynchronous page faults on uses the vector in another
/// register, and the deadline is relative to the time-stamp counter.
const LAST_MSRS: [u32; 2] = [0x4b56_4d02, 0x6e0];

impl SavedVcpu {
    pub(crate) fn save(kvm: &Kvm, vcpu: &VcpuFd) -> Result<Self> {
        Ok(Self {
            features: vcpu.get_cpuid2(KVM_MAX_CPUID_ENTRIES)?.as_slice().to_vec(),
            tsc_khz: vcpu.get_tsc_khz()?,
            run_state: vcpu.get_mp_state()?,
            registers: vcpu.get_regs()?,
            special_registers: vcpu.get_sregs()?,
            extended_state: vcpu.get_xsave()?,
            extended_control: vcpu.get_xcrs()?,
            debug_registers: vcpu.get_debug_regs()?,
            local_apic: vcpu.get_lapic()?,
            msrs: save_msrs(kvm, vcpu)?,
            events: vcpu.get_vcpu_events()?,
        })
    }

    /// Restores a processor that has never run. The order matters: the features say which registers
    /// exist, and the special registers say where the local APIC is.
    #[allow(unsafe_code)]
    pub(crate) fn restore(&self, vcpu: &VcpuFd) -> Result<()> {
        vcpu.set_cpuid2(&CpuId::from_entries(&self.features)?)?;
        if vcpu.get_tsc_khz()? != self.tsc_khz {
            vcpu.set_tsc_khz(self.tsc_khz)?;
        }
        vcpu.set_mp_state(self.run_state)?;
        vcpu.set_regs(&self.registers)?;
        vcpu.set_sregs(&self.special_registers)?;
        // SAFETY: KVM reads more than this structure only for features that a process must ask for
        // (AMX), and this one does not.
        unsafe { vcpu.set_xsave(&self.extended_state) }?;
        vcpu.set_xcrs(&self.extended_control)?;
        vcpu.set_debug_regs(&self.debug_registers)?;
        vcpu.set_lapic(&self.local_apic)?;
        restore_msrs(vcpu, &self.msrs)?;
        vcpu.set_vcpu_events(&self.events)?;
        Ok(())
    }
}

/// Reads every register that KVM knows, KVM's own among them (its clock, asynchronous page faults),
/// and that this processor has.
fn save_msrs(kvm: &Kvm, vcpu: &VcpuFd) -> Result<Vec<SavedMsr>> {
    let mut saved = Vec::new();
    let indices = kvm.get_msr_index_list()?;
    for index in indices.as_slice() {
        let entry = kvm_msr_entry {
            index: *index,
            ..kvm_msr_entry::default()
        };
        let mut msr = Msrs::from_entries(&[entry])?;
        if vcpu.get_msrs(&mut msr)? == 1 {
            saved.extend(msr.as_slice().iter().map(|entry| SavedMsr {
                index: entry.index,
                value: entry.data,
            }));
        }
    }
    saved.sort_by_key(|msr| LAST_MSRS.iter().position(|last| *last == msr.index));
    Ok(saved)
}

fn restore_msrs(vcpu: &VcpuFd, saved: &[SavedMsr]) -> Result<()> {
    let entries: Vec<kvm_msr_entry> = saved
        .iter()
        .map(|msr| kvm_msr_entry {
            index: msr.index,
            data: msr.value,
            ..kvm_msr_entry::default()
        })
        .collect();
    // KVM ends at the first one that it refuses.
    let restored = vcpu.set_msrs(&Msrs::from_entries(&entries)?)?;
    match saved.get(restored) {
        Some(msr) => Err(format!("KVM refuses {:#x} in MSR {:#x}", msr.value, msr.index).into()),
        None => Ok(()),
    }
}

impl SavedInterruptController {
    /// Two 8259s and the I/O APIC.
    pub(crate) const NUMBER: usize = 3;

    pub(crate) fn save_all(vm: &VmFd) -> Result<Vec<Self>> {
        (0..)
            .take(Self::NUMBER)
            .map(|chip_id| {
                let mut chip = kvm_irqchip {
                    chip_id,
                    ..kvm_irqchip::default()
                };
                vm.get_irqchip(&mut chip)?;
                Ok(Self(chip))
            })
            .collect()
    }

    pub(crate) fn restore(&self, vm: &VmFd) -> Result<()> {
        Ok(vm.set_irqchip(&self.0)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::monitor::console::Console;
    use crate::monitor::machine::Machine;

    /// Words of the extended state: register XMM7, and which parts are in use (here: SSE).
    const XMM7: usize = 68;
    const IN_USE: usize = 128;

    /// Registers that advance meanwhile: the time-stamp counter, MPERF, APERF, and Hyper-V's time.
    const COUNTERS: [u32; 4] = [0x10, 0xe7, 0xe8, 0x4000_0020];

    /// A value in each part of the state that the nano guest hardly uses.
    #[allow(unsafe_code)]
    fn set_unusual_values(vcpu: &VcpuFd) -> Result<()> {
        let mut registers = vcpu.get_regs()?;
        registers.r15 = 0x1234_5678_9abc_def0;
        vcpu.set_regs(&registers)?;
        let mut extended_state = vcpu.get_xsave()?;
        extended_state.region[XMM7] = 0x5a5a_5a5a;
        extended_state.region[IN_USE] |= 2;
        // SAFETY: as in `SavedVcpu::restore`.
        unsafe { vcpu.set_xsave(&extended_state) }?;
        let mut debug_registers = vcpu.get_debug_regs()?;
        debug_registers.db[1] = 0x4000;
        vcpu.set_debug_regs(&debug_registers)?;
        let mut local_apic = vcpu.get_lapic()?;
        local_apic.regs[0x80] = 0x30; // the task priority
        vcpu.set_lapic(&local_apic)?;
        let mut events = vcpu.get_vcpu_events()?;
        events.nmi.masked = 1;
        vcpu.set_vcpu_events(&events)?;
        // The address of the system-call entry, and the vector of asynchronous page faults.
        let values = [(0xc000_0082, 0x10_2000), (0x4b56_4d06, 0xec)];
        let values = values.map(|(index, value)| SavedMsr { index, value });
        restore_msrs(vcpu, &values)
    }

    #[test]
    fn every_part_is_restored() -> Result<()> {
        if let Err(error) = Kvm::new() {
            let ci = std::env::var_os("CI").is_some_and(|ci| ci == "true");
            assert!(!ci, "no test under KVM can run: /dev/kvm: {error}");
            eprintln!("NOT TESTED: /dev/kvm: {error}");
            return Ok(());
        }
        let source = Machine::new(1, Console::default(), false)?;
        let destination = Machine::new(1, Console::default(), false)?;
        let (kvm, from, to) = (
            source.kvm(),
            &source.paused()?[0],
            &destination.paused()?[0],
        );
        from.set_cpuid2(&kvm.get_supported_cpuid(KVM_MAX_CPUID_ENTRIES)?)?;
        set_unusual_values(from)?;
        let saved = SavedVcpu::save(kvm, from)?;
        let bytes = postcard::to_allocvec(&saved)?;
        postcard::from_bytes::<SavedVcpu>(&bytes)?.restore(to)?;
        let mut restored = SavedVcpu::save(kvm, to)?;
        for msr in &mut restored.msrs {
            if COUNTERS.contains(&msr.index) {
                msr.value = saved.msr(msr.index).ok_or("a counter was not saved")?;
            }
        }
        for (index, value) in [(0xc000_0082, 0x10_2000), (0x4b56_4d06, 0xec)] {
            assert_eq!(restored.msr(index), Some(value), "{index:#x}");
        }
        assert_eq!(restored.registers.r15, 0x1234_5678_9abc_def0);
        assert_eq!(restored.extended_state.region[XMM7], 0x5a5a_5a5a);
        assert_eq!(restored.debug_registers.db[1], 0x4000);
        assert_eq!(restored.local_apic.regs[0x80], 0x30);
        assert_eq!(restored.events.nmi.masked, 1);
        assert!(postcard::to_allocvec(&restored)? == bytes);
        Ok(())
    }

    impl SavedVcpu {
        fn msr(&self, index: u32) -> Option<u64> {
            let msr = self.msrs.iter().find(|msr| msr.index == index)?;
            Some(msr.value)
        }
    }
}
