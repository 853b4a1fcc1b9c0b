//! What the installed `core` expects of a program without an operating system.

// The memory functions.
use hikkoshi_bare_metal as _;

/// Referenced by the unwind tables of the installed `core`, which are not linked. Never called.
#[unsafe(no_mangle)]
pub extern "C" fn rust_eh_personality() -> ! {
    crate::fail("unexpected unwinding")
}

/// As above.
#[unsafe(no_mangle)]
pub extern "C" fn _Unwind_Resume() -> ! {
    crate::fail("unexpected unwinding")
}

#[panic_handler]
fn panicked(information: &core::panic::PanicInfo<'_>) -> ! {
    crate::fail(format_args!("{information}"))
}
