//! What a processor offers, and the word that points it at a guest's tables.

/// What the processor offers for second-stage tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// Leaves may allow fetching instructions without reading.
    pub execute_only: bool,
    /// 2 MiB leaves.
    pub pages_2m: bool,
    /// 1 GiB leaves.
    pub pages_1g: bool,
    /// Accessed and dirty flags.
    pub accessed_dirty: bool,
    /// Page-modification logging.
    pub pml: bool,
    /// Bitmap of a host-physical address (`CPUID.80000008H:EAX[7:0]`).
    pub physical_bits: u32,
}

impl Capabilities {
    /// Everything, 48 address bits: what current server processors have, and what the software
    /// processor ([`testing`](crate::testing)) does.
    pub const ALL: Self = Self {
        execute_only: true,
        pages_2m: true,
        pages_1g: true,
        accessed_dirty: true,
        pml: true,
        physical_bits: 48,
    };

    /// Reads them from `IA32_VMX_EPT_VPID_CAP` (MSR 48CH; SDM vol. 3D, appendix A.10) and
    /// `IA32_VMX_PROCBASED_CTLS2` (MSR 48BH, appendix A.3.3). `None` if the processor cannot use these
    /// tables at all: it lacks 4-level walks, write-back memory for the tables, or `INVEPT` for one pointer.
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
            // "Allowed 1-settings" are the upper half; enable PML is control bit 17.
            pml: ept_vpid & (1 << 21) != 0 && controls2 & (1 << (32 + 17)) != 0,
            physical_bits,
        })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn an_icelake_model_has_everything() {
        // What Bochs' corei7_icelake_u reports.
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
            "PML needs flags"
        );
    }
}
