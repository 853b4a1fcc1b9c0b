//! Second processes for the tests: real processes, created by `fork`, that run a closure of the
//! test.

// Each test program uses a part of this. The unsafe blocks are system calls with visible arguments;
// a wrong one, or a failed `unwrap`, fails a test.
#![allow(dead_code, unsafe_code, clippy::undocumented_unsafe_blocks)]
#![allow(clippy::unwrap_used, clippy::print_stderr)]

use std::fs::File;
use std::io::Write;
use std::os::fd::FromRawFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Memory shared by both processes.
#[repr(C)]
pub(crate) struct Shared {
    pub words: [AtomicU64; 512],
}

impl Shared {
    pub(crate) fn get(&self, word: usize) -> u64 {
        self.words[word].load(Ordering::SeqCst)
    }
    pub(crate) fn set(&self, word: usize, value: u64) {
        self.words[word].store(value, Ordering::SeqCst);
    }
    pub(crate) fn add(&self, word: usize, value: u64) -> u64 {
        self.words[word].fetch_add(value, Ordering::SeqCst)
    }
    /// Waits until a word has reached a value.
    pub(crate) fn wait(&self, word: usize, value: u64) {
        eventually(&format!("word {word} to reach {value}"), || {
            self.get(word) >= value
        });
    }
}

/// Waits until a condition is true. The long time limit only prevents a hang.
pub(crate) fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(
            start.elapsed() < Duration::from_secs(30),
            "timed out waiting for {what}"
        );
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// A process that runs a closure; killed when dropped.
pub(crate) struct Target {
    pub pid: u32,
    pub shared: &'static Shared,
}

impl Target {
    /// Runs `body` on the main thread of the process, which exits with its result, or 101 after a
    /// panic.
    pub(crate) fn spawn(body: impl FnOnce(&'static Shared) -> i32) -> Self {
        let shared: &'static Shared = unsafe {
            // Never unmapped: the test and its helper threads may read it at any time.
            let memory = map_shared(size_of::<Shared>(), -1);
            &*memory.cast::<Shared>()
        };
        let pid = unsafe { libc::fork() };
        assert!(pid >= 0, "fork: {}", std::io::Error::last_os_error());
        if pid == 0 {
            unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
            let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                close_inherited();
                body(shared)
            }));
            unsafe { libc::_exit(result.unwrap_or(101)) };
        }
        Self {
            pid: pid.unsigned_abs(),
            shared,
        }
    }

    pub(crate) fn kill(&self, signal: i32) {
        let result = unsafe { libc::kill(self.raw(), signal) };
        assert_eq!(result, 0, "kill: {}", std::io::Error::last_os_error());
    }

    pub(crate) fn raw(&self) -> i32 {
        i32::try_from(self.pid).unwrap()
    }

    /// Waits until it exits. Returns the exit code, or the negated signal that killed it.
    pub(crate) fn join(&self) -> i32 {
        let mut status = 0;
        let mut code = None;
        eventually("the target to end", || {
            let pid = unsafe { libc::waitpid(self.raw(), &mut status, libc::WNOHANG) };
            assert!(pid >= 0, "waitpid: {}", std::io::Error::last_os_error());
            if pid == self.raw() {
                code = if libc::WIFEXITED(status) {
                    Some(libc::WEXITSTATUS(status))
                } else if libc::WIFSIGNALED(status) {
                    Some(-libc::WTERMSIG(status))
                } else {
                    None
                };
            }
            code.is_some()
        });
        code.unwrap()
    }

    /// Waits until thread `tid` is inside system call `number`.
    pub(crate) fn wait_in_syscall(&self, tid: u32, number: libc::c_long) {
        eventually(&format!("system call {number}"), || {
            self.is_in_syscall(tid, number)
        });
    }

    /// Whether thread `tid` is in system call `number`, or in the call that restarts one with a
    /// timeout.
    pub(crate) fn is_in_syscall(&self, tid: u32, number: libc::c_long) -> bool {
        is_in_syscall(self.pid, tid, number)
    }

    /// State of the main thread, from `/proc/PID/stat`.
    pub(crate) fn state(&self) -> char {
        let text = std::fs::read_to_string(format!("/proc/{}/stat", self.pid)).unwrap();
        text.rsplit_once(") ").unwrap().1.chars().next().unwrap()
    }

    /// Targets of its open descriptors.
    pub(crate) fn descriptors(&self) -> Vec<String> {
        let mut found: Vec<String> = std::fs::read_dir(format!("/proc/{}/fd", self.pid))
            .unwrap()
            .filter_map(|entry| std::fs::read_link(entry.unwrap().path()).ok())
            .map(|link| link.to_string_lossy().into_owned())
            .collect();
        found.sort();
        found
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        unsafe {
            libc::kill(self.raw(), libc::SIGKILL);
            libc::waitpid(self.raw(), std::ptr::null_mut(), 0);
        }
    }
}

/// Whether a thread is in system call `number`, or in the call that restarts one with a timeout.
pub(crate) fn is_in_syscall(pid: u32, tid: u32, number: libc::c_long) -> bool {
    let calls = [number, libc::SYS_restart_syscall].map(|call| format!("{call} "));
    std::fs::read_to_string(format!("/proc/{pid}/task/{tid}/syscall"))
        .is_ok_and(|text| calls.iter().any(|call| text.starts_with(call)))
}

/// A fork copies descriptors that other tests have open, including their userfaultfds.
fn close_inherited() {
    for entry in std::fs::read_dir("/proc/self/fd").unwrap() {
        let path = entry.unwrap().path();
        if std::fs::read_link(&path).is_ok_and(|link| link.ends_with("anon_inode:[userfaultfd]")) {
            let number = path.file_name().unwrap().to_str().unwrap();
            unsafe { libc::close(number.parse().unwrap()) };
        }
    }
}

pub(crate) fn gettid() -> u32 {
    unsafe { libc::gettid() }.unsigned_abs()
}

/// Creates a shared mapping of `bytes` bytes: of `fd`, or anonymous for -1.
pub(crate) fn map_shared(bytes: usize, fd: i32) -> *mut u8 {
    let flags = libc::MAP_SHARED | if fd < 0 { libc::MAP_ANONYMOUS } else { 0 };
    let memory = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            bytes,
            libc::PROT_READ | libc::PROT_WRITE,
            flags,
            fd,
            0,
        )
    };
    let error = std::io::Error::last_os_error();
    assert_ne!(memory, libc::MAP_FAILED, "mmap: {error}");
    memory.cast()
}

/// Becomes an ordinary user that processes of the same user may trace.
pub(crate) fn become_nobody() {
    unsafe {
        assert_eq!(libc::setgroups(0, std::ptr::null()), 0);
        assert_eq!(libc::setresgid(65534, 65534, 65534), 0);
        assert_eq!(libc::setresuid(65534, 65534, 65534), 0);
        assert_eq!(libc::prctl(libc::PR_SET_DUMPABLE, 1), 0);
        // Changing the user ID cleared it.
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
    }
}

/// Runs `body` in a separate process as an ordinary user; returns its text.
pub(crate) fn as_nobody(body: impl FnOnce() -> String) -> String {
    let target = Target::spawn(|shared| {
        become_nobody();
        let text = body();
        for (word, byte) in shared.words.iter().skip(1).zip(text.bytes()) {
            word.store(byte.into(), Ordering::SeqCst);
        }
        shared.set(0, text.len() as u64);
        i32::from(text.len() >= shared.words.len())
    });
    assert_eq!(target.join(), 0);
    let length = usize::try_from(target.shared.get(0)).unwrap();
    let bytes = (1..=length).map(|word| u8::try_from(target.shared.get(word)).unwrap());
    String::from_utf8(bytes.collect()).unwrap()
}

/// A file in memory: tmpfs, or hugetlb pages of 2 MiB.
pub(crate) fn memory_file(bytes: u64, huge: bool) -> File {
    let flags = if huge {
        libc::MFD_CLOEXEC | libc::MFD_HUGETLB | libc::MFD_HUGE_2MB
    } else {
        libc::MFD_CLOEXEC
    };
    let fd = unsafe { libc::memfd_create(c"ram".as_ptr(), flags) };
    assert!(fd >= 0, "{}", std::io::Error::last_os_error());
    let file = unsafe { File::from_raw_fd(fd) };
    file.set_len(bytes).unwrap();
    file
}

/// Prints a message even if the test passes: the test harness captures the output of the printing
/// macros, and shows it only for a failed test.
pub(crate) fn aloud(text: &str) {
    let test = std::thread::current();
    let line = format!("{}: {text}\n", test.name().unwrap_or("a test"));
    let _ = std::io::stderr().write_all(line.as_bytes());
}

/// Huge pages reserved for a test, and released afterwards.
pub(crate) struct HugePages(u64, #[allow(dead_code)] File);

const POOL: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB";

impl HugePages {
    fn read(name: &str) -> u64 {
        let text = std::fs::read_to_string(format!("{POOL}/{name}")).unwrap();
        text.trim().parse().unwrap()
    }

    /// `None`, with a printed message, if this machine cannot reserve any.
    pub(crate) fn reserve(pages: u64) -> Option<Self> {
        // Held until the pages are released: test programs that run at the same time use the pool,
        // too. The path is hikkoshi-lab's.
        let path = std::env::temp_dir().join("hikkoshi-huge-pages.lock");
        let lock = File::create(path).unwrap();
        rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive).unwrap();
        let before = Self::read("nr_hugepages");
        let written = std::fs::write(format!("{POOL}/nr_hugepages"), (before + pages).to_string());
        let now = Self::read("nr_hugepages");
        if written.is_ok() && now >= before + pages {
            return Some(Self(pages, lock));
        }
        let _ = std::fs::write(format!("{POOL}/nr_hugepages"), before.to_string());
        aloud(&format!(
            "NOT TESTED: {pages} huge pages of 2 MiB cannot be reserved here ({written:?}, \
             {before} before, {now} after)"
        ));
        None
    }
}

impl Drop for HugePages {
    fn drop(&mut self) {
        let now = Self::read("nr_hugepages");
        let rest = now.saturating_sub(self.0).to_string();
        let _ = std::fs::write(format!("{POOL}/nr_hugepages"), rest);
    }
}
