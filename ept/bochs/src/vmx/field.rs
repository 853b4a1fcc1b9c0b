//! The VMCS fields that are used here, with the encoding of the SDM (vol. 3D, appendix B).

macro_rules! fields {
    ($($(#[$note:meta])* $name:ident = $code:literal,)*) => {
        $($(#[$note])* pub const $name: Field = Field($code);)*
    };
}

/// The encoding of a field, which includes its width and type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field(pub u64);

/// The eight segments in the order of the encoding: ES, CS, SS, DS, FS, GS, LDTR, TR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment(pub u64);

impl Segment {
    /// Code.
    pub const CS: Segment = Segment(1);
    /// Local descriptor table.
    pub const LDTR: Segment = Segment(6);
    /// Task.
    pub const TR: Segment = Segment(7);
    /// All of them.
    pub const ALL: [Segment; 8] = [
        Segment(0),
        Self::CS,
        Segment(2),
        Segment(3),
        Segment(4),
        Segment(5),
        Self::LDTR,
        Self::TR,
    ];

    /// The guest's selector.
    pub fn selector(self) -> Field {
        Field(0x800 + 2 * self.0)
    }
    /// The guest's limit, in bytes.
    pub fn limit(self) -> Field {
        Field(0x4800 + 2 * self.0)
    }
    /// The guest's access rights.
    pub fn access(self) -> Field {
        Field(0x4814 + 2 * self.0)
    }
    /// The guest's base address.
    pub fn base(self) -> Field {
        Field(0x6806 + 2 * self.0)
    }
}

fields! {
    /// Next entry of the page-modification log; 16 bits.
    PML_INDEX = 0x0812,
    /// Host selectors.
    HOST_ES = 0x0c00,
    HOST_CS = 0x0c02,
    HOST_SS = 0x0c04,
    HOST_DS = 0x0c06,
    HOST_FS = 0x0c08,
    HOST_GS = 0x0c0a,
    HOST_TR = 0x0c0c,
    /// Physical address of the page-modification log.
    PML_ADDRESS = 0x200e,
    /// The extended-page-table pointer.
    EPT_POINTER = 0x201a,
    /// The guest-physical address of an EPT exit.
    GUEST_PHYSICAL_ADDRESS = 0x2400,
    /// Must be all ones.
    LINK_POINTER = 0x2800,
    GUEST_EFER = 0x2806,
    HOST_EFER = 0x2c02,
    PIN_CONTROLS = 0x4000,
    PRIMARY_CONTROLS = 0x4002,
    EXCEPTION_BITMAP = 0x4004,
    EXIT_CONTROLS = 0x400c,
    ENTRY_CONTROLS = 0x4012,
    SECONDARY_CONTROLS = 0x401e,
    /// The error of the last VMX instruction.
    INSTRUCTION_ERROR = 0x4400,
    EXIT_REASON = 0x4402,
    /// Length of the instruction that caused the exit, in bytes.
    EXIT_INSTRUCTION_LENGTH = 0x440c,
    GUEST_GDTR_LIMIT = 0x4810,
    GUEST_IDTR_LIMIT = 0x4812,
    GUEST_INTERRUPTIBILITY = 0x4824,
    GUEST_ACTIVITY = 0x4826,
    PREEMPTION_TIMER = 0x482e,
    EXIT_QUALIFICATION = 0x6400,
    GUEST_CR0 = 0x6800,
    GUEST_CR3 = 0x6802,
    GUEST_CR4 = 0x6804,
    GUEST_DR7 = 0x681a,
    GUEST_RSP = 0x681c,
    GUEST_RIP = 0x681e,
    GUEST_RFLAGS = 0x6820,
    HOST_CR0 = 0x6c00,
    HOST_CR3 = 0x6c02,
    HOST_CR4 = 0x6c04,
    HOST_TR_BASE = 0x6c0a,
    HOST_GDTR_BASE = 0x6c0c,
    HOST_IDTR_BASE = 0x6c0e,
    HOST_RIP = 0x6c16,
}
