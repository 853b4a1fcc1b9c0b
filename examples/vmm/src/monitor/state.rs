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
use crate::monitor::devices::SavedDevices;

/// The machine.
#[derive(Serialize, Deserialize)]
pub(crate) struct SavedMachine {
    pub(crate) vcpus: Vec<SavedVcpu>,
    /// KVM's: two 8259s and the I/O APIC.
    pub(crate) interrupt_controllers: [kvm_irqchip; 3],
    /// KVM's clock when the guest was paused, in nanoseconds.
    pub(crate) clock: u64,
    pub(crate) devices: SavedDevices,
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
    msrs: Vec<kvm_msr_entry>,
    events: kvm_vcpu_events,
}

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
fn save_msrs(kvm: &Kvm, vcpu: &VcpuFd) -> Result<Vec<kvm_msr_entry>> {
    let mut saved = Vec::new();
    for index in kvm.get_msr_index_list()?.as_slice() {
        let mut msr = Msrs::from_entries(&[kvm_msr_entry {
            index: *index,
            ..kvm_msr_entry::default()
        }])?;
        if vcpu.get_msrs(&mut msr)? == 1 {
            saved.extend_from_slice(msr.as_slice());
        }
    }
    saved.sort_by_key(|msr| LAST_MSRS.iter().position(|last| *last == msr.index));
    Ok(saved)
}

fn restore_msrs(vcpu: &VcpuFd, saved: &[kvm_msr_entry]) -> Result<()> {
    // KVM ends at the first one that it refuses.
    let restored = vcpu.set_msrs(&Msrs::from_entries(saved)?)?;
    match saved.get(restored) {
        Some(msr) => Err(format!("KVM refuses {:#x} in MSR {:#x}", msr.data, msr.index).into()),
        None => Ok(()),
    }
}

pub(crate) fn save_interrupt_controllers(vm: &VmFd) -> Result<[kvm_irqchip; 3]> {
    let mut chips = [0, 1, 2].map(|chip_id| kvm_irqchip {
        chip_id,
        ..kvm_irqchip::default()
    });
    for chip in &mut chips {
        vm.get_irqchip(chip)?;
    }
    Ok(chips)
}

#[cfg(test)]
mod tests;
