use super::*;
use crate::monitor::console::Console;
use crate::monitor::machine::Machine;

/// Words of the extended state: register XMM7, and which parts are in use (here: SSE).
const XMM7: usize = 68;
const IN_USE: usize = 128;

/// Registers that advance meanwhile: the time-stamp counter, MPERF, APERF, and Hyper-V's time.
const COUNTERS: [u32; 4] = [0x10, 0xe7, 0xe8, 0x4000_0020];

/// The address of the system-call entry, and the vector of asynchronous page faults.
const UNUSUAL_MSRS: [(u32, u64); 2] = [(0xc000_0082, 0x10_2000), (0x4b56_4d06, 0xec)];

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
    let msrs = UNUSUAL_MSRS.map(|(index, data)| kvm_msr_entry {
        index,
        data,
        ..kvm_msr_entry::default()
    });
    restore_msrs(vcpu, &msrs)
}

#[test]
fn every_part_is_restored() -> Result<()> {
    if let Err(error) = Kvm::new() {
        let ci = std::env::var_os("CI").is_some_and(|ci| ci == "true");
        assert!(!ci, "no test under KVM can run: /dev/kvm: {error}");
        eprintln!("NOT TESTED: /dev/kvm: {error}");
        return Ok(());
    }
    let source = Machine::new(Console::default(), false)?;
    let destination = Machine::new(Console::default(), false)?;
    let ((kvm, from), (_, to)) = (source.kvm_and_vcpu(), destination.kvm_and_vcpu());
    from.set_cpuid2(&kvm.get_supported_cpuid(KVM_MAX_CPUID_ENTRIES)?)?;
    set_unusual_values(from)?;
    let saved = SavedVcpu::save(kvm, from)?;
    let bytes = postcard::to_allocvec(&saved)?;
    postcard::from_bytes::<SavedVcpu>(&bytes)?.restore(to)?;
    let mut restored = SavedVcpu::save(kvm, to)?;
    for msr in &mut restored.msrs {
        if COUNTERS.contains(&msr.index) {
            msr.data = saved.msr(msr.index).ok_or("a counter was not saved")?;
        }
    }
    for (index, value) in UNUSUAL_MSRS {
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
        Some(msr.data)
    }
}
