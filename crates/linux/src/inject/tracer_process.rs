//! Doing something in a process of its own that shares everything with this one but its life.
//!
//! Whoever kills hikkoshi must not take another process with it whose registers are ours just then.
//! So the tracer is no thread of this program but a process beside it: with the same memory, files
//! and identity, made as `vfork(2)` makes one, and in a process group of its own. It sees through
//! what it has begun, and ends. (LeakSanitizer's tracer is made the same way.)

use std::any::Any;
use std::io;
use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;

use libc::{c_int, c_void};

/// Memory, files and folders are shared; the thread that asks stands still until it is over; nobody
/// is told of its end, and no debugger of this program's follows it.
const FLAGS: c_int =
    libc::CLONE_VM | libc::CLONE_VFORK | libc::CLONE_FILES | libc::CLONE_FS | libc::CLONE_UNTRACED;

/// As much as a thread gets.
const STACK: usize = 2 << 20;

/// Below the stack, never to be touched: at least a page of any size there is.
const GUARD: usize = 64 << 10;

/// Why nothing came of it.
#[derive(Debug)]
pub(super) enum TracerProcessError {
    /// There is no memory, or no process, for it.
    Start(io::Error),
    /// It was killed itself.
    Killed,
    /// It panicked, with this.
    Panicked(Box<dyn Any + Send>),
}

struct Job<F, T> {
    work: Option<F>,
    result: Option<Result<T, Box<dyn Any + Send>>>,
}

/// Does `work` in a process of its own, and waits for it. If this program is killed meanwhile,
/// `work` goes on to its end.
pub(super) fn run<T, F: FnOnce() -> T>(work: F) -> Result<T, TracerProcessError> {
    let stack = Stack::new().map_err(TracerProcessError::Start)?;
    let mut job = Job {
        work: Some(work),
        result: None,
    };
    let signals = BlockedSignals::all();
    // SAFETY: `entry` is given what it expects, on a stack that nobody else uses. It runs on this
    // thread's thread-local memory, which is safe because this thread stands still in the kernel
    // until the process has ended (CLONE_VFORK), or never goes on because it was killed. No handler
    // of a signal runs in it: it starts with all signals blocked, as this thread has them now.
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
    // What is sent to this program's whole group is not for this process.
    // SAFETY: concerns this process only.
    unsafe { libc::setpgid(0, 0) };
    // SAFETY: it is the `Job` of `run`, whose thread stands still, or was killed, which leaves
    // its stack where it is.
    let job = unsafe { &mut *job.cast::<Job<F, T>>() };
    if let Some(work) = job.work.take() {
        job.result = Some(catch_unwind(AssertUnwindSafe(work)));
    }
    0
}

fn reap(pid: libc::pid_t) {
    // SAFETY: no status is wanted. It is a child that sends no signal at its end (`__WALL`).
    while unsafe { libc::waitpid(pid, ptr::null_mut(), libc::__WALL) } == -1
        && io::Error::last_os_error().kind() == io::ErrorKind::Interrupted
    {}
}

/// Memory for a stack.
struct Stack(*mut c_void);

impl Stack {
    fn new() -> io::Result<Self> {
        let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_STACK | libc::MAP_NORESERVE;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: new memory, wherever there is room.
        let memory = unsafe { libc::mmap(ptr::null_mut(), GUARD + STACK, access, kind, -1, 0) };
        if memory == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let stack = Self(memory);
        // SAFETY: the beginning of what was mapped just now, which nothing points to.
        match unsafe { libc::mprotect(memory, GUARD, libc::PROT_NONE) } {
            0 => Ok(stack),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Its end, where it begins: page-aligned, and so aligned as the ABI wants it.
    fn top(&self) -> *mut c_void {
        self.0.wrapping_byte_add(GUARD + STACK)
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`, and who ran on it has ended.
        unsafe { libc::munmap(self.0, GUARD + STACK) };
    }
}

/// All of this thread's signals are blocked as long as this lives.
struct BlockedSignals(libc::sigset_t);

impl BlockedSignals {
    fn all() -> Self {
        let (mut all, mut before) = (MaybeUninit::uninit(), MaybeUninit::zeroed());
        // SAFETY: `sigfillset` fills the set in before it is read; the old set is all zeros, a
        // valid one, even if it were not written.
        unsafe {
            libc::sigfillset(all.as_mut_ptr());
            libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
            Self(before.assume_init())
        }
    }
}

impl Drop for BlockedSignals {
    fn drop(&mut self) {
        // SAFETY: the set that was in force before.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.0, ptr::null_mut()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_another_process_with_the_same_memory_and_files() {
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
    fn a_panic_is_brought_back() {
        let result = run(|| panic!("meant to"));
        let Err(TracerProcessError::Panicked(panic)) = result else {
            panic!("{result:?}");
        };
        assert_eq!(panic.downcast_ref(), Some(&"meant to"));
    }

    #[test]
    fn its_own_death_is_told() {
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
