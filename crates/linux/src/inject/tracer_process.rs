//! Runs a function in a separate process that shares memory and files but survives this program.
//!
//! If hikkoshi is killed while it has changed the registers of another process, that process would
//! crash. So the tracer is not a thread of this program but a child process: with the same memory,
//! files and identity, created like `vfork(2)` does, in a separate process group. It completes its
//! work and exits. (LeakSanitizer creates its tracer the same way.)

use std::any::Any;
use std::io;
use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;

use libc::{c_int, c_void};

/// The process shares memory, files and file system information. The calling thread is blocked
/// until the process exits. The process sends no signal when it exits, and a debugger of this
/// program does not follow it.
const FLAGS: c_int =
    libc::CLONE_VM | libc::CLONE_VFORK | libc::CLONE_FILES | libc::CLONE_FS | libc::CLONE_UNTRACED;

/// Stack size, the same as for a thread.
const STACK: usize = 2 << 20;

/// Guard area below the stack, at least one page for every page size.
const GUARD: usize = 64 << 10;

/// Why running the function failed.
#[derive(Debug)]
pub(super) enum TracerProcessError {
    /// The system is out of memory or processes.
    Start(io::Error),
    /// The tracer process was killed.
    Killed,
    /// The function panicked with this value.
    Panicked(Box<dyn Any + Send>),
}

struct Job<F, T> {
    work: Option<F>,
    result: Option<Result<T, Box<dyn Any + Send>>>,
}

/// Runs `work` in a separate process and waits for it. If this program is killed meanwhile, `work`
/// still completes.
pub(super) fn run<T, F: FnOnce() -> T>(work: F) -> Result<T, TracerProcessError> {
    let stack = Stack::new().map_err(TracerProcessError::Start)?;
    let mut job = Job {
        work: Some(work),
        result: None,
    };
    let signals = BlockedSignals::all();
    // SAFETY: `entry` gets the argument that it expects, on a stack that no other thread uses. It
    // uses the thread-local memory of this thread. That is safe because this thread is blocked in
    // the kernel until the process has exited (CLONE_VFORK), or was killed and never continues. No
    // signal handler runs in the process: it starts with all signals blocked, because this thread
    // blocks them here.
    let pid = unsafe { libc::clone(entry::<T, F>, stack.top(), FLAGS, (&raw mut job).cast()) };
    let started = match pid {
        -1 => Err(TracerProcessError::Start(io::Error::last_os_error())),
        pid => {
            reap(pid);
            Ok(())
        }
    };
    drop(signals);
    started?;
    match job.result {
        Some(Ok(done)) => Ok(done),
        Some(Err(panic)) => Err(TracerProcessError::Panicked(panic)),
        None => Err(TracerProcessError::Killed),
    }
}

extern "C" fn entry<T, F: FnOnce() -> T>(job: *mut c_void) -> c_int {
    // Signals to this program's process group must not reach this process.
    // SAFETY: affects only this process.
    unsafe { libc::setpgid(0, 0) };
    // SAFETY: it is the `Job` of `run`. Its thread is blocked, or was killed, which does not free
    // its stack.
    let job = unsafe { &mut *job.cast::<Job<F, T>>() };
    if let Some(work) = job.work.take() {
        job.result = Some(catch_unwind(AssertUnwindSafe(work)));
    }
    0
}

fn reap(pid: libc::pid_t) {
    // SAFETY: no status is requested. The child sends no signal when it exits (`__WALL`).
    while unsafe { libc::waitpid(pid, ptr::null_mut(), libc::__WALL) } == -1
        && io::Error::last_os_error().kind() == io::ErrorKind::Interrupted
    {}
}

/// Memory for a stack, with a guard area.
struct Stack(*mut c_void);

impl Stack {
    fn new() -> io::Result<Self> {
        let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_STACK | libc::MAP_NORESERVE;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at an address that the kernel chooses.
        let memory = unsafe { libc::mmap(ptr::null_mut(), GUARD + STACK, access, kind, -1, 0) };
        if memory == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let stack = Self(memory);
        // SAFETY: the start of the new mapping, to which no reference exists.
        match unsafe { libc::mprotect(memory, GUARD, libc::PROT_NONE) } {
            0 => Ok(stack),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// The address at which the stack starts: page-aligned, as the ABI requires at least 16 bytes.
    fn top(&self) -> *mut c_void {
        self.0.wrapping_byte_add(GUARD + STACK)
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`, and the process that used it has exited.
        unsafe { libc::munmap(self.0, GUARD + STACK) };
    }
}

/// Blocks all signals of the calling thread until it is dropped.
struct BlockedSignals(libc::sigset_t);

impl BlockedSignals {
    fn all() -> Self {
        let (mut all, mut before) = (MaybeUninit::uninit(), MaybeUninit::zeroed());
        // SAFETY: `sigfillset` initializes the set before it is read; the old set is all zeros, a
        // valid value, even if it is not written.
        unsafe {
            libc::sigfillset(all.as_mut_ptr());
            libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
            Self(before.assume_init())
        }
    }
}

impl Drop for BlockedSignals {
    fn drop(&mut self) {
        // SAFETY: restores the previous signal mask.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.0, ptr::null_mut()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_process_shares_memory_and_files() {
        let text = "from here".to_owned();
        let (file, id, length) = run(|| {
            let file = tempfile::tempfile().unwrap();
            (file, std::process::id(), text.len())
        })
        .unwrap();
        assert_ne!(id, std::process::id());
        assert_eq!(length, text.len());
        assert_eq!(file.metadata().unwrap().len(), 0, "open here, too");
    }

    #[test]
    fn a_panic_is_returned() {
        let result = run(|| panic!("meant to"));
        let Err(TracerProcessError::Panicked(panic)) = result else {
            panic!("{result:?}");
        };
        assert_eq!(panic.downcast_ref(), Some(&"meant to"));
    }

    #[test]
    fn its_death_is_reported() {
        let result = run(|| {
            rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL)
                .unwrap();
        });
        assert!(
            matches!(result, Err(TracerProcessError::Killed)),
            "{result:?}"
        );
    }
}
