//! One traced thread, with typed wrappers for the ptrace requests that are needed.
//!
//! Every request except seize and interrupt requires a stopped thread, and must come from the
//! thread that seized it. So [`Tracee`] is not `Send`.

use std::marker::PhantomData;
use std::time::{Duration, Instant};

use libc::{c_long, c_void};
use rustix::io::Errno;

use crate::errno::last_errno;

/// Not in the libc crate for glibc; values from `linux/ptrace.h`.
const PTRACE_GETSIGMASK: u32 = 0x420a;
const PTRACE_SETSIGMASK: u32 = 0x420b;
const PTRACE_GET_RSEQ_CONFIGURATION: u32 = 0x420f;
const PTRACE_O_SUSPEND_SECCOMP: usize = 1 << 21;
const PTRACE_EVENT_STOP: i32 = 128;

/// Options of each traced thread.
const OPTIONS: usize = libc::PTRACE_O_TRACESYSGOOD as usize;

/// General-purpose registers, including `orig_rax`.
pub(super) type Registers = libc::user_regs_struct;

/// A signal set in the kernel's format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SignalMask(pub(super) u64);

/// The restartable-sequence area of a thread (`struct ptrace_rseq_configuration`).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RseqConfiguration {
    pub(super) pointer: u64,
    pub(super) size: u32,
    pub(super) signature: u32,
    pub(super) flags: u32,
    pub(super) pad: u32,
}

/// Why a thread stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Halt {
    /// `PTRACE_INTERRUPT` took effect, or the thread entered or left a group-stop.
    Trap,
    /// Entry or exit of a system call.
    Syscall,
    /// This signal is about to be delivered. It is lost unless it is passed when the thread
    /// continues.
    Signal(i32),
    /// The thread or its process has exited.
    Ended,
    /// Any other stop: the status from `waitid`.
    Other(i32),
}

/// A thread seized by the calling thread. Drop detaches from it if it is stopped; otherwise the
/// kernel detaches when the calling thread exits.
#[derive(Debug)]
pub(super) struct Tracee {
    tid: libc::pid_t,
    /// The current stop, if the thread has not been continued.
    halted: Option<Halt>,
    detached: bool,
    /// ptrace identifies the tracer by thread.
    _not_send: PhantomData<*const ()>,
}

impl Tracee {
    /// Seizes thread `tid`, which continues to run.
    pub(super) fn seize(tid: u32) -> Result<Self, Errno> {
        let tid = libc::pid_t::try_from(tid).map_err(|_| Errno::SRCH)?;
        request(libc::PTRACE_SEIZE, tid, 0, OPTIONS)?;
        Ok(Self {
            tid,
            halted: None,
            detached: false,
            _not_send: PhantomData,
        })
    }

    pub(super) fn tid(&self) -> u32 {
        self.tid.unsigned_abs()
    }

    /// Suspends the seccomp filter of a stopped thread, until it is detached from.
    pub(super) fn suspend_seccomp(&self) -> Result<(), Errno> {
        let options = OPTIONS | PTRACE_O_SUSPEND_SECCOMP;
        request(libc::PTRACE_SETOPTIONS, self.tid, 0, options)
    }

    /// Asks the thread to stop; [`Self::wait`] reports the stop.
    pub(super) fn interrupt(&self) -> Result<(), Errno> {
        request(libc::PTRACE_INTERRUPT, self.tid, 0, 0)
    }

    /// Lets a stopped thread run until the next entry or exit of a system call.
    pub(super) fn run_to_syscall(&mut self, signal: i32) -> Result<(), Errno> {
        self.resume(libc::PTRACE_SYSCALL, signal)
    }

    /// Lets a stopped thread run.
    pub(super) fn run(&mut self, signal: i32) -> Result<(), Errno> {
        self.resume(libc::PTRACE_CONT, signal)
    }

    fn resume(&mut self, how: u32, signal: i32) -> Result<(), Errno> {
        request(how, self.tid, 0, signal_word(signal))?;
        self.halted = None;
        Ok(())
    }

    /// Waits until the thread stops. Returns `None` when `deadline` has passed.
    pub(super) fn wait(&mut self, deadline: Option<Instant>) -> Option<Halt> {
        let mut attempts = 0;
        loop {
            if let Some(halt) = self.poll() {
                return Some(halt);
            }
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return None;
            }
            // A stop usually takes microseconds; the thread may need the processor that we run on.
            attempts += 1;
            match attempts {
                0..50 => std::thread::yield_now(),
                50..100 => std::thread::sleep(Duration::from_micros(50)),
                _ => std::thread::sleep(Duration::from_millis(1)),
            }
        }
    }

    fn poll(&mut self) -> Option<Halt> {
        // Wait only for this tracee, and only as its tracer, so that other children and other
        // waiting threads are not affected. The first call does not consume the status: if the
        // process has exited and is a child of this program, its parent code still needs the
        // status.
        let flags = libc::__WALL | libc::__WNOTHREAD | libc::WNOHANG | libc::WSTOPPED;
        let halt = match self.waitid(flags | libc::WEXITED | libc::WNOWAIT) {
            Ok(None) | Err(Errno::INTR) => return None,
            Ok(Some(Halt::Ended)) => Halt::Ended,
            Ok(Some(_)) => match self.waitid(flags) {
                Ok(Some(halt)) => halt,
                Ok(None) | Err(_) => return None,
            },
            // ECHILD: not our tracee any more. This happens to a main thread when another thread of
            // the process calls exec, and to any thread that was reaped.
            Err(_) => Halt::Ended,
        };
        if halt == Halt::Ended {
            self.detached = true;
        }
        self.halted = Some(halt);
        Some(halt)
    }

    fn waitid(&self, flags: i32) -> Result<Option<Halt>, Errno> {
        // SAFETY: integers and pointers, for which zero is a valid value.
        let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
        // SAFETY: `info` is written by the call and outlives it.
        let result =
            unsafe { libc::waitid(libc::P_PID, self.tid.unsigned_abs(), &mut info, flags) };
        if result < 0 {
            return Err(last_errno());
        }
        // SAFETY: waitid fills in the fields of a SIGCHLD, or leaves them zero.
        let (pid, status) = unsafe { (info.si_pid(), info.si_status()) };
        Ok((pid != 0).then(|| classify(info.si_code, status)))
    }

    pub(super) fn registers(&self) -> Result<Registers, Errno> {
        // SAFETY: integers, for which zero is a valid value.
        let mut registers: Registers = unsafe { std::mem::zeroed() };
        // SAFETY: PTRACE_GETREGS writes one `user_regs_struct`, borrowed for the call.
        unsafe { raw(libc::PTRACE_GETREGS, self.tid, 0, pointer(&mut registers)) }?;
        Ok(registers)
    }

    pub(super) fn set_registers(&self, registers: &Registers) -> Result<(), Errno> {
        let mut registers = *registers;
        // SAFETY: PTRACE_SETREGS reads one `user_regs_struct`, borrowed for the call.
        unsafe { raw(libc::PTRACE_SETREGS, self.tid, 0, pointer(&mut registers)) }
    }

    pub(super) fn signal_mask(&self) -> Result<SignalMask, Errno> {
        let mut mask = 0u64;
        // SAFETY: PTRACE_GETSIGMASK writes as many bytes as its third argument says, eight.
        unsafe { raw(PTRACE_GETSIGMASK, self.tid, 8, pointer(&mut mask)) }?;
        Ok(SignalMask(mask))
    }

    pub(super) fn set_signal_mask(&self, mask: SignalMask) -> Result<(), Errno> {
        let mut mask = mask.0;
        // SAFETY: PTRACE_SETSIGMASK reads as many bytes as its third argument says, eight.
        unsafe { raw(PTRACE_SETSIGMASK, self.tid, 8, pointer(&mut mask)) }
    }

    /// The restartable-sequence area of the thread; `None` if it has none.
    pub(super) fn rseq(&self) -> Option<RseqConfiguration> {
        let mut configuration = RseqConfiguration::default();
        let size = size_of::<RseqConfiguration>();
        // SAFETY: PTRACE_GET_RSEQ_CONFIGURATION writes at most as many bytes as its third argument
        // says, the size of `configuration`.
        unsafe {
            raw(
                PTRACE_GET_RSEQ_CONFIGURATION,
                self.tid,
                size,
                pointer(&mut configuration),
            )
        }
        .ok()?;
        (configuration.pointer != 0).then_some(configuration)
    }

    /// Detaches from a stopped thread; a signal that was about to be delivered is delivered.
    pub(super) fn detach(&mut self) -> Result<(), Errno> {
        let signal = match self.halted {
            Some(Halt::Signal(signal)) => signal,
            _ => 0,
        };
        request(libc::PTRACE_DETACH, self.tid, 0, signal_word(signal))?;
        self.detached = true;
        Ok(())
    }
}

impl Drop for Tracee {
    fn drop(&mut self) {
        if self.detached {
            return;
        }
        let halt = self.halted.or_else(|| self.poll());
        if halt.is_some_and(|halt| halt != Halt::Ended) {
            // If this fails, the kernel detaches when this thread exits.
            let _ = self.detach();
        }
    }
}

/// Converts the result of `waitid`: the code, and the signal with the ptrace event above it.
fn classify(code: i32, status: i32) -> Halt {
    match code {
        libc::CLD_EXITED | libc::CLD_KILLED | libc::CLD_DUMPED => return Halt::Ended,
        libc::CLD_TRAPPED | libc::CLD_STOPPED => {}
        _ => return Halt::Other(status),
    }
    let signal = status & 0xff;
    match status >> 8 {
        PTRACE_EVENT_STOP => Halt::Trap,
        0 if signal == libc::SIGTRAP | 0x80 => Halt::Syscall,
        0 => Halt::Signal(signal),
        _ => Halt::Other(status),
    }
}

fn signal_word(signal: i32) -> usize {
    usize::try_from(signal).unwrap_or(0)
}

fn pointer<T>(value: &mut T) -> *mut c_void {
    std::ptr::from_mut(value).cast()
}

/// A ptrace request whose last argument is a number.
fn request(request: u32, tid: libc::pid_t, third: usize, fourth: usize) -> Result<(), Errno> {
    // SAFETY: the requests made through here (seize, interrupt, cont, syscall, detach) take their
    // fourth argument by value and dereference nothing.
    unsafe {
        raw(
            request,
            tid,
            third,
            std::ptr::without_provenance_mut(fourth),
        )
    }
}

/// # Safety
///
/// `fourth` must be what `request` requires: a number, or a pointer to memory that the request may
/// read or write as described in `ptrace(2)`.
unsafe fn raw(
    request: u32,
    tid: libc::pid_t,
    third: usize,
    fourth: *mut c_void,
) -> Result<(), Errno> {
    let third = std::ptr::without_provenance_mut::<c_void>(third);
    // SAFETY: by the contract of this function. None of the requests used here returns data.
    let result: c_long = unsafe { libc::ptrace(request, tid, third, fourth) };
    if result < 0 {
        Err(last_errno())
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stops_are_classified() {
        let stopped = |signal: i32, event: i32| classify(libc::CLD_TRAPPED, (event << 8) | signal);
        assert_eq!(stopped(libc::SIGTRAP, 128), Halt::Trap);
        assert_eq!(stopped(libc::SIGSTOP, 128), Halt::Trap);
        assert_eq!(stopped(libc::SIGTRAP | 0x80, 0), Halt::Syscall);
        assert_eq!(stopped(libc::SIGTRAP, 0), Halt::Signal(libc::SIGTRAP));
        assert_eq!(stopped(libc::SIGUSR1, 0), Halt::Signal(libc::SIGUSR1));
        assert!(matches!(stopped(libc::SIGTRAP, 4), Halt::Other(_)));
        assert_eq!(classify(libc::CLD_EXITED, 1), Halt::Ended);
        assert_eq!(classify(libc::CLD_KILLED, libc::SIGKILL), Halt::Ended);
    }
}
