//! The EPT features of a processor.

/// The processor's features for second-stage tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// Execute-only leaves.
    pub execute_only: bool,
    /// 2 MiB leaves.
    pub pages_2m: bool,
    /// 1 GiB leaves.
    pub pages_1g: bool,
    /// Accessed and dirty flags.
    pub accessed_dirty: bool,
    /// Page-modification logging (PML).
    pub pml: bool,
    /// Width of a host-physical address in bits (`CPUID.80000008H:EAX[7:0]`).
    pub physical_bits: u32,
}

impl Capabilities {
    /// All features and 48 address bits, as on current server processors. The software processor of
    /// [`testing`](crate::testing) has them all.
    pub const ALL: Self = Self {
        execute_only: true,
        pages_2m: true,
        pages_1g: true,
        accessed_dirty: true,
        pml: true,
        physical_bits: 48,
    };

    /// Decodes `IA32_VMX_EPT_VPID_CAP` (MSR 48CH; SDM vol. 3D, appendix A.10) and
    /// `IA32_VMX_PROCBASED_CTLS2` (MSR 48BH, appendix A.3.3). Returns `None` if the processor
    /// cannot use these tables: four-level walks, write-back memory for the tables and
    /// single-context `INVEPT` are required.
    pub const fn from_msrs(ept_vpid: u64, controls2: u64, physical_bits: u32) -> Option<Self> {
        const WALK_4: u64 = 1 << 6;
        const WRITE_BACK: u64 = 1 << 14;
        const INVEPT: u64 = 1 << 20;
        const INVEPT_SINGLE_CONTEXT: u64 = 1 << 25;
        const NEEDED: u64 = WALK_4 | WRITE_BACK | INVEPT | INVEPT_SINGLE_CONTEXT;
        if ept_vpid & NEEDED != NEEDED {
            return None;
        }
        Some(Self {
            execute_only: ept_vpid & 1 != 0,
            pages_2m: ept_vpid & (1 << 16) != 0,
            pages_1g: ept_vpid & (1 << 17) != 0,
            accessed_dirty: ept_vpid & (1 << 21) != 0,
            // "Allowed 1-settings" are the upper half of the MSR. "Enable PML" is bit 17 of the
            // control.
            pml: ept_vpid & (1 << 21) != 0 && controls2 & (1 << (32 + 17)) != 0,
            physical_bits,
        })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_msrs_of_an_icelake_model_are_decoded() {
        // As reported by Bochs's corei7_icelake_u.
        let found = Capabilities::from_msrs(0x0633_4141, 0x0297_7fff << 32, 40).unwrap();
        assert_eq!(
            found,
            Capabilities {
                physical_bits: 40,
                ..Capabilities::ALL
            }
        );
        for lacking in [6, 14, 20, 25] {
            let without = 0x0633_4141 & !(1 << lacking);
            assert_eq!(Capabilities::from_msrs(without, 0, 40), None);
        }
        assert!(
            !Capabilities::from_msrs(0x0613_4141, u64::MAX, 40)
                .unwrap()
                .pml,
            "PML requires dirty flags"
        );
    }
}
