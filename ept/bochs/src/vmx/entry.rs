//! VM entry and exit: the registers that the VMCS does not hold.

/// The guest's general registers. The assembly below accesses them in this order.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Registers {
    /// Accumulator.
    pub rax: u64,
    /// Base.
    pub rbx: u64,
    /// Counter.
    pub rcx: u64,
    /// Data.
    pub rdx: u64,
    /// Source.
    pub rsi: u64,
    /// Destination.
    pub rdi: u64,
    /// Frame.
    pub rbp: u64,
}

core::arch::global_asm!(
    r#"
    .global vmx_enter
vmx_enter:                          // rdi: the registers; rsi: whether it was launched before
    push rbx
    push rbp
    push r12
    push r13
    push r14
    push r15
    push rdi
    mov rax, 0x6c14                 // HOST_RSP
    vmwrite rax, rsp
    jbe 2f
    test rsi, rsi
    mov rax, [rdi]                  // MOV leaves the flags as they are
    mov rbx, [rdi + 8]
    mov rcx, [rdi + 16]
    mov rdx, [rdi + 24]
    mov rsi, [rdi + 32]
    mov rbp, [rdi + 48]
    mov rdi, [rdi + 40]
    jnz 1f
    vmlaunch
    jmp 2f
1:
    vmresume
2:                                  // the entry failed; the guest did not run
    pop rdi
    mov eax, 1
    jmp 3f

    .global vmx_exit
vmx_exit:                           // every exit comes here, with the stack as it was
    xchg rdi, [rsp]
    mov [rdi], rax
    mov [rdi + 8], rbx
    mov [rdi + 16], rcx
    mov [rdi + 24], rdx
    mov [rdi + 32], rsi
    mov [rdi + 48], rbp
    pop rax
    mov [rdi + 40], rax
    xor eax, eax
3:
    pop r15
    pop r14
    pop r13
    pop r12
    pop rbp
    pop rbx
    ret
    "#
);

unsafe extern "C" {
    /// Runs the guest of the current VMCS until it exits. Returns 0, or 1 if the entry failed. The
    /// VMCS must direct exits to `vmx_exit`, and the guest must not write to this program's memory.
    pub fn vmx_enter(registers: &mut Registers, launched: u64) -> u64;
    /// The address of the exit handler; only its address is used.
    pub static vmx_exit: u8;
}
