//! A stopped thread that executes system calls for us.

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::os::unix::fs::FileExt;

use error_reporter::Report;
use rustix::io::Errno;

use super::error::InjectError;
use super::seize::Stopped;
use super::tracee::{Halt, Registers, SignalMask, Tracee};
use crate::process::Process;

/// The `syscall` instruction of x86-64.
const SYSCALL_INSTRUCTION: [u8; 2] = [0x0f, 0x05];

/// The code segment of 64-bit user code on Linux (`__USER_CS`).
const USER_CS: u64 = 0x33;

/// Bytes below the stack pointer that belong to the running function (x86-64 ABI).
const RED_ZONE: u64 = 128;

/// A vDSO has two or three pages; anything much larger is not a vDSO.
const MAX_VDSO: u64 = 1 << 20;

const RESTORING: &str = "restoring its registers";

/// `orig_rax` of a thread that is not in a system call: the kernel does not restart one.
const NO_SYSCALL: u64 = u64::MAX;

/// A stopped thread of another process whose registers are temporarily changed.
#[derive(Debug)]
pub struct Remote {
    pid: u32,
    stopped: Stopped,
    memory: File,
    /// Address of a `syscall` instruction in the process.
    syscall_at: u64,
    saved: Registers,
    mask: SignalMask,
    /// Address of the thread's `rseq_cs` field, and its value when the thread was stopped.
    rseq_cs: Option<(u64, [u8; 8])>,
    /// Whether the thread is stopped at an injected system call, and not where it was found.
    at_injected_syscall: bool,
    released: bool,
}

/// Memory of the process that the injection may use until its end.
#[derive(Debug)]
pub struct Scratch {
    /// Address in the process, a multiple of 16.
    pub at: u64,
    before: Vec<u8>,
}

impl Remote {
    /// Prepares a stopped thread. If this fails, the thread is unchanged.
    pub(super) fn new(process: &Process, stopped: Stopped) -> Result<Self, InjectError> {
        let pid = process.pid();
        let failed = |doing| {
            let tracee = &stopped.tracee;
            move |source| proc_error(tracee, pid, doing, source)
        };
        let ptrace = |doing, step| move |source| ptrace_error(pid, doing, step, source);
        let saved = stopped
            .tracee
            .registers()
            .map_err(ptrace("reading the registers of", "reading its registers"))?;
        if saved.cs != USER_CS {
            return Err(InjectError::NotAmd64 { pid });
        }
        // Use the files of the thread: a main thread that has exited has no memory any more.
        let tid = stopped.tracee.tid();
        let maps = process
            .open_proc(&format!("task/{tid}/maps"))
            .map_err(failed("reading the mappings"))?;
        let memory = process
            .open_thread_memory(tid)
            .map_err(failed("opening the memory"))?;
        let syscall_at = find_syscall(maps, &memory)
            .map_err(failed("reading the vDSO"))?
            // A process that is exiting has no mappings.
            .ok_or_else(|| match stopped.tracee.registers() {
                Ok(_) => InjectError::NoVdso { pid },
                Err(_) => InjectError::Died {
                    pid,
                    step: "searching for its vDSO",
                },
            })?;
        let mask = stopped.tracee.signal_mask().map_err(ptrace(
            "reading the signal mask of",
            "reading its signal mask",
        ))?;
        // A change of the instruction pointer makes the kernel clear `rseq_cs`. The restartable
        // sequence that the thread was in would then not be aborted, as it must be. So save the
        // value.
        let rseq_cs = stopped.tracee.rseq().and_then(|rseq| {
            // `rseq_cs` is the third field of `struct rseq`, after two 32-bit ones.
            let at = rseq.pointer.checked_add(8)?;
            let mut current = [0; 8];
            memory.read_exact_at(&mut current, at).ok()?;
            (current != [0; 8]).then_some((at, current))
        });
        let remote = Self {
            pid,
            stopped,
            memory,
            syscall_at,
            saved,
            mask,
            rseq_cs,
            at_injected_syscall: false,
            released: false,
        };
        // From here on only SIGKILL and SIGSTOP reach the thread; other signals stay pending.
        remote
            .stopped
            .tracee
            .set_signal_mask(SignalMask(u64::MAX))
            .map_err(ptrace("blocking the signals of", "blocking its signals"))?;
        Ok(remote)
    }

    /// Executes one system call on the thread. The inner result is the result of the call.
    pub fn syscall(
        &mut self,
        step: &'static str,
        number: libc::c_long,
        arguments: [u64; 6],
    ) -> Result<Result<u64, Errno>, InjectError> {
        let [rdi, rsi, rdx, r10, r8, r9] = arguments;
        let registers = Registers {
            rip: self.syscall_at,
            rax: number.cast_unsigned(),
            orig_rax: NO_SYSCALL,
            rdi,
            rsi,
            rdx,
            r10,
            r8,
            r9,
            ..self.saved
        };
        self.stopped
            .tracee
            .set_registers(&registers)
            .map_err(|source| ptrace_error(self.pid, "setting the registers of", step, source))?;
        self.at_injected_syscall = true;
        self.run_to_syscall_stop(step)?;
        let entered = self.registers(step)?;
        if entered.orig_rax != number.cast_unsigned() {
            return Err(self.unexpected_stop(step, -1));
        }
        self.run_to_syscall_stop(step)?;
        let result = self.registers(step)?.rax.cast_signed();
        // The kernel returns errors as -4095..=-1.
        Ok(match result {
            -4095..0 => Err(i32::try_from(-result).map_or(Errno::IO, Errno::from_raw_os_error)),
            value => Ok(value.cast_unsigned()),
        })
    }

    /// Reserves `bytes` on the stack of the thread, below the red zone. A signal handler could
    /// overwrite this memory at any time, so the process does not use it.
    pub fn scratch(&self, bytes: u16) -> Result<Scratch, InjectError> {
        let at = self.saved.rsp.saturating_sub(RED_ZONE + u64::from(bytes)) & !15;
        let mut before = vec![0; usize::from(bytes)];
        self.read(at, &mut before)?;
        Ok(Scratch { at, before })
    }

    /// Restores the previous content of `scratch`.
    pub fn restore_scratch(&self, scratch: &Scratch) -> Result<(), InjectError> {
        self.write(scratch.at, &scratch.before)
    }

    /// Reads the process's memory at address `at`.
    ///
    /// # Errors
    ///
    /// When the memory is not mapped or the process has exited.
    pub fn read(&self, at: u64, bytes: &mut [u8]) -> Result<(), InjectError> {
        self.memory.read_exact_at(bytes, at).map_err(|source| {
            proc_error(&self.stopped.tracee, self.pid, "reading the memory", source)
        })
    }

    /// Writes the process's memory at address `at`.
    ///
    /// # Errors
    ///
    /// When the memory is not mapped or the process has exited.
    pub fn write(&self, at: u64, bytes: &[u8]) -> Result<(), InjectError> {
        self.memory.write_all_at(bytes, at).map_err(|source| {
            proc_error(&self.stopped.tracee, self.pid, "writing the memory", source)
        })
    }

    /// Restores the thread and detaches from it.
    pub(super) fn release(mut self) -> Result<(), InjectError> {
        self.restore()
    }

    fn restore(&mut self) -> Result<(), InjectError> {
        if std::mem::replace(&mut self.released, true) {
            return Ok(());
        }
        let registers = if self.at_injected_syscall {
            self.restore_registers()
        } else {
            Ok(())
        };
        // Restore the signal mask and detach even if restoring the registers failed.
        let tracee = &mut self.stopped.tracee;
        let mask = tracee.set_signal_mask(self.mask);
        let detached = tracee.detach();
        let pid = self.pid;
        let failed = |doing| move |source| ptrace_error(pid, doing, RESTORING, source);
        registers?;
        mask.map_err(failed("restoring the signal mask of"))?;
        detached.map_err(failed("detaching from"))
    }

    /// Returns a thread that is at the exit of our system call to the state in which it was found.
    fn restore_registers(&mut self) -> Result<(), InjectError> {
        let pid = self.pid;
        let failed = |doing| move |source| ptrace_error(pid, doing, RESTORING, source);
        let tracee = &mut self.stopped.tracee;
        // The kernel restarts the interrupted system call only when the thread leaves a stop like
        // the one it was found in, so bring the thread to such a stop first.
        tracee
            .set_registers(&self.saved)
            .map_err(failed("restoring the registers of"))?;
        tracee.interrupt().map_err(failed("interrupting"))?;
        let mut signal = 0;
        loop {
            tracee.run(signal).map_err(failed("continuing"))?;
            signal = match tracee.wait(None) {
                Some(Halt::Trap) => break,
                Some(Halt::Signal(signal)) => signal,
                Some(Halt::Ended) => {
                    return Err(InjectError::Died {
                        pid,
                        step: RESTORING,
                    });
                }
                Some(Halt::Syscall | Halt::Other(_)) | None => 0,
            };
        }
        match self.rseq_cs {
            Some((at, current)) => self.write(at, &current),
            None => Ok(()),
        }
    }

    /// Lets the thread run to the next entry or exit of a system call. There is no time limit: the
    /// thread has our registers, so the system call must complete.
    fn run_to_syscall_stop(&mut self, step: &'static str) -> Result<(), InjectError> {
        let mut signal = 0;
        loop {
            self.stopped
                .tracee
                .run_to_syscall(signal)
                .map_err(|source| ptrace_error(self.pid, "continuing", step, source))?;
            signal = match self.stopped.tracee.wait(None) {
                Some(Halt::Syscall) => return Ok(()),
                // Passing on SIGSTOP stops the other threads of the process. This thread reports a
                // trap instead, continues for us, and stops like the others after we detach.
                Some(Halt::Signal(signal)) => signal,
                Some(Halt::Trap) | None => 0,
                Some(Halt::Ended) => {
                    return Err(InjectError::Died {
                        pid: self.pid,
                        step,
                    });
                }
                Some(Halt::Other(status)) => return Err(self.unexpected_stop(step, status)),
            };
        }
    }

    fn registers(&self, step: &'static str) -> Result<Registers, InjectError> {
        self.stopped
            .tracee
            .registers()
            .map_err(|source| ptrace_error(self.pid, "reading the registers of", step, source))
    }

    fn unexpected_stop(&self, step: &'static str, status: i32) -> InjectError {
        InjectError::UnexpectedStop {
            pid: self.pid,
            tid: self.stopped.tracee.tid(),
            status,
            step,
        }
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        match self.restore() {
            Ok(()) | Err(InjectError::Died { .. }) => {}
            Err(error) => {
                tracing::error!(error = %Report::new(&error), "restoring a traced thread failed")
            }
        }
    }
}

/// The kernel returns `ESRCH` when a stopped thread no longer exists; only a kill causes that.
fn ptrace_error(pid: u32, doing: &'static str, step: &'static str, source: Errno) -> InjectError {
    match source {
        Errno::SRCH => InjectError::Died { pid, step },
        source => InjectError::Ptrace { pid, doing, source },
    }
}

fn proc_error(tracee: &Tracee, pid: u32, doing: &'static str, source: io::Error) -> InjectError {
    // A process that is exiting loses its memory before it disappears, but its threads leave their
    // ptrace stop before that.
    match tracee.registers() {
        Ok(_) => InjectError::Proc { pid, doing, source },
        Err(_) => InjectError::Died { pid, step: doing },
    }
}

/// Finds a `syscall` instruction in the vDSO. Every process has a vDSO.
fn find_syscall(maps: File, memory: &File) -> io::Result<Option<u64>> {
    for line in BufReader::new(maps).lines() {
        let line = line?;
        let Some((start, end)) = vdso_range(&line) else {
            continue;
        };
        let Ok(length) = usize::try_from((end - start).min(MAX_VDSO)) else {
            continue;
        };
        let mut code = vec![0; length];
        memory.read_exact_at(&mut code, start)?;
        // Any two such bytes are sufficient: they are executable, and only they are executed.
        let found = code
            .windows(SYSCALL_INSTRUCTION.len())
            .position(|bytes| bytes == SYSCALL_INSTRUCTION);
        return Ok(found.map(|offset| start + offset as u64));
    }
    Ok(None)
}

/// Start and end of the vDSO, if this line of `/proc/PID/maps` describes it.
fn vdso_range(line: &str) -> Option<(u64, u64)> {
    let (range, rest) = line.split_once(' ')?;
    if !rest.ends_with("[vdso]") || !rest.starts_with("r-x") {
        return None;
    }
    let (start, end) = range.split_once('-')?;
    let start = u64::from_str_radix(start, 16).ok()?;
    let end = u64::from_str_radix(end, 16).ok()?;
    (start < end).then_some((start, end))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_vdso_line_matches() {
        let line = "7ffd3d5f2000-7ffd3d5f4000 r-xp 00000000 00:00 0                [vdso]";
        assert_eq!(vdso_range(line), Some((0x7ffd_3d5f_2000, 0x7ffd_3d5f_4000)));
        for line in [
            "7ffd3d5ee000-7ffd3d5f2000 r--p 00000000 00:00 0            [vvar]",
            "7ffd3d5f2000-7ffd3d5f4000 rw-p 00000000 00:00 0            [vdso]",
            "7ffd3d5f4000-7ffd3d5f2000 r-xp 00000000 00:00 0            [vdso]",
            "[vdso]",
            "",
        ] {
            assert_eq!(vdso_range(line), None, "{line}");
        }
    }

    #[test]
    fn our_own_vdso_has_a_system_call() {
        let maps = File::open("/proc/self/maps").unwrap();
        let memory = File::open("/proc/self/mem").unwrap();
        let at = find_syscall(maps, &memory).unwrap().unwrap();
        let mut bytes = [0; 2];
        memory.read_exact_at(&mut bytes, at).unwrap();
        assert_eq!(bytes, SYSCALL_INSTRUCTION);
    }
}
