//! QEMU's names of feature flags, as used after `-cpu`.
//!
//! They were determined with QEMU 7.2 and 10.0: a processor was plugged in with
//! one property on, and the flag that changed has that name. The names of KVM's
//! own leaf are in the kernel's `Documentation/virt/kvm/x86/cpuid.rst`.

use crate::messages::CpuidRegister::{self, Eax, Ebx, Ecx, Edx};

/// Leaf, subleaf, register, and the names from bit 0 on; `-` is a bit without a
/// name.
type Names = (u32, u32, CpuidRegister, &'static str);

const NAMES: [Names; 26] = [
    (
        0x1,
        0,
        Ecx,
        "pni pclmulqdq dtes64 monitor ds-cpl vmx smx est tm2 ssse3 cid - fma cx16 xtpr \
         pdcm - pcid dca sse4.1 sse4.2 x2apic movbe popcnt tsc-deadline aes xsave - avx \
         f16c rdrand hypervisor",
    ),
    (
        0x1,
        0,
        Edx,
        "fpu vme de pse tsc msr pae mce cx8 apic - sep mtrr pge mca cmov pat pse36 pn \
         clflush - ds acpi mmx fxsr sse sse2 ss ht tm ia64 pbe",
    ),
    (0x6, 0, Eax, "- - arat"),
    (
        0x7,
        0,
        Ebx,
        "fsgsbase tsc-adjust sgx bmi1 hle avx2 fdp-excptn-only smep bmi2 erms invpcid \
         rtm - zero-fcs-fds mpx - avx512f avx512dq rdseed adx smap avx512ifma pcommit \
         clflushopt clwb intel-pt avx512pf avx512er avx512cd sha-ni avx512bw avx512vl",
    ),
    (
        0x7,
        0,
        Ecx,
        "- avx512vbmi umip pku - waitpkg avx512vbmi2 - gfni vaes vpclmulqdq avx512vnni \
         avx512bitalg - avx512-vpopcntdq - la57 - - - - - rdpid - bus-lock-detect \
         cldemote - movdiri movdir64b - sgxlc pks",
    ),
    (
        0x7,
        0,
        Edx,
        "- - avx512-4vnniw avx512-4fmaps fsrm - - - avx512-vp2intersect - md-clear - - \
         - serialize - tsx-ldtrk - - arch-lbr - - amx-bf16 avx512-fp16 amx-tile \
         amx-int8 spec-ctrl stibp flush-l1d arch-capabilities core-capability ssbd",
    ),
    (
        0x7,
        1,
        Eax,
        "sha512 sm3 sm4 - avx-vnni avx512-bf16 - cmpccxadd - - fzrm fsrs fsrc - - - - \
         fred lkgs wrmsrns - amx-fp16 - avx-ifma - - lam",
    ),
    (
        0x7,
        1,
        Edx,
        "- - - - avx-vnni-int8 avx-ne-convert - - amx-complex - avx-vnni-int16 - - - \
         prefetchiti - - - - avx10",
    ),
    (
        0x7,
        2,
        Edx,
        "intel-psfd ipred-ctrl rrsba-ctrl ddpd-u bhi-ctrl mcdt-no",
    ),
    (0xd, 1, Eax, "xsaveopt xsavec xgetbv1 xsaves xfd"),
    (0x12, 0, Eax, "sgx1 sgx2 - - - - - - - - - sgx-edeccssa"),
    (0x12, 0, Ebx, "sgx-exinfo"),
    (
        0x12,
        1,
        Eax,
        "- sgx-debug sgx-mode64 - sgx-provisionkey sgx-tokenkey - sgx-kss - - \
         sgx-aex-notify",
    ),
    (
        0x14,
        0,
        Ecx,
        "- - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - intel-pt-lip",
    ),
    (
        0x24,
        0,
        Ebx,
        "- - - - - - - - - - - - - - - - avx10-128 avx10-256 avx10-512",
    ),
    (
        0x4000_0001,
        0,
        Eax,
        "kvmclock kvm-nopiodelay kvm-mmu kvmclock kvm-asyncpf kvm-steal-time kvm-pv-eoi \
         kvm-pv-unhalt - kvm-pv-tlb-flush kvm-asyncpf-vmexit kvm-pv-ipi \
         kvm-poll-control kvm-pv-sched-yield kvm-asyncpf-int kvm-msi-ext-dest-id - - - \
         - - - - - kvmclock-stable-bit",
    ),
    (0x4000_0001, 0, Edx, "kvm-hint-dedicated"),
    (
        0x8000_0001,
        0,
        Ecx,
        "lahf-lm cmp-legacy svm extapic cr8legacy abm sse4a misalignsse 3dnowprefetch \
         osvw ibs xop skinit wdt - lwp fma4 tce - nodeid-msr - tbm topoext perfctr-core \
         perfctr-nb",
    ),
    (
        0x8000_0001,
        0,
        Edx,
        "- - - - - - - - - - - syscall - - - - - - - - nx - mmxext - - fxsr-opt pdpe1gb \
         rdtscp - lm 3dnowext 3dnow",
    ),
    (0x8000_0007, 0, Ebx, "overflow-recov succor"),
    (0x8000_0007, 0, Edx, "- - - - - - - - invtsc"),
    (
        0x8000_0008,
        0,
        Ebx,
        "clzero - xsaveerptr - - - - - - wbnoinvd - - ibpb - ibrs amd-stibp - \
         stibp-always-on - - - - - - amd-ssbd virt-ssbd amd-no-ssb - amd-psfd",
    ),
    (
        0x8000_000a,
        0,
        Edx,
        "npt lbrv svm-lock nrip-save tsc-scale vmcb-clean flushbyasid decodeassists - - \
         pause-filter - pfthreshold avic - v-vmsave-vmload vgif - - - - - - - - vnmi - \
         - svme-addr-chk",
    ),
    (
        0x8000_0021,
        0,
        Eax,
        "no-nested-data-bp - lfence-always-serializing - - - null-sel-clr-base - \
         auto-ibrs - - - - - - - - - - - - - - - eraps - - sbpb ibpb-brtype srso-no \
         srso-user-kernel-no",
    ),
    (0x8000_0022, 0, Eax, "perfmon-v2"),
    (
        0xc000_0001,
        0,
        Edx,
        "- - xstore xstore-en - - xcrypt xcrypt-en ace2 ace2-en phe phe-en pmm pmm-en",
    ),
];

/// AMD's processors repeat some flags of leaf 1 in this word, in the same bits.
const REPEATS: (u32, CpuidRegister) = (0x8000_0001, Edx);

/// The word that has these flags.
pub(super) const REPEATED: (u32, u32, CpuidRegister) = (1, 0, Edx);

/// Returns the name of bit `bit` of a word, if it has one.
pub(super) fn name(
    leaf: u32,
    subleaf: u32,
    register: CpuidRegister,
    bit: u32,
) -> Option<&'static str> {
    let (.., names) = NAMES
        .iter()
        .find(|(l, s, r, _)| (*l, *s, *r) == (leaf, subleaf, register))?;
    let name = names.split(' ').nth(bit as usize)?;
    (name != "-").then_some(name)
}

/// Returns the name of the flag of leaf 1 that bit `bit` of this word repeats on AMD's processors,
/// if it repeats one. Other processors do not have the bit, whether they have the flag or not.
pub(super) fn repeated(
    leaf: u32,
    subleaf: u32,
    register: CpuidRegister,
    bit: u32,
) -> Option<&'static str> {
    let is_own = name(leaf, subleaf, register, bit).is_some();
    ((leaf, register) == REPEATS && !is_own)
        .then(|| name(REPEATED.0, REPEATED.1, REPEATED.2, bit))
        .flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_have_the_names_used_after_cpu() {
        assert_eq!(name(1, 0, Ecx, 20), Some("sse4.2"));
        assert_eq!(name(7, 0, Ebx, 5), Some("avx2"));
        assert_eq!(name(0x4000_0001, 0, Eax, 14), Some("kvm-asyncpf-int"));
        assert_eq!(name(0x8000_0001, 0, Edx, 0), None);
        assert_eq!(repeated(0x8000_0001, 0, Edx, 0), Some("fpu"));
        assert_eq!(repeated(0x8000_0001, 0, Edx, 29), None, "lm is its own");
        assert_eq!(repeated(1, 0, Edx, 0), None);
        assert_eq!(name(7, 0, Edx, 0), None);
        assert_eq!(name(7, 0, Edx, 99), None);
        assert_eq!(name(0x77, 0, Eax, 0), None);
    }

    #[test]
    fn no_word_has_more_names_than_flags() {
        for (leaf, _, _, names) in NAMES {
            assert!(names.split(' ').count() <= 32, "{leaf:#x}");
        }
    }
}
