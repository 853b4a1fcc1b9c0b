//! Sandbox for a process that serves clients, and only reads one folder.
//!
//! The process gives up what a [sandboxed thread](crate::sandbox_thread) gives up, with fewer
//! exceptions for memory and more for files and threads: it may list and read the folder, connect
//! to unix sockets, accept connections on sockets that listen already, and start threads. It cannot
//! write to a file, open a connection to a port, or execute a program.
//!
//! Landlock does not restrict connections to the unix sockets of files (Linux 6.18), and a process
//! of root may connect to all of root's sockets: monitors of QEMU, for example. So a process that
//! may change its root folder makes the folder its root, and a process of root that may not is
//! refused. Other users have no such right; their process can connect to all sockets of the same
//! user. The user stays the same: root can read the folder of root only as root.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use error_reporter::Report;
use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, PathBeneath, PathFd,
    Ruleset, RulesetAttr, RulesetCreatedAttr, RulesetError, Scope,
};
use rustix::io::Errno;
use rustix::process::{chdir, chroot, geteuid};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, set_capabilities, set_no_new_privs,
};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen as Len, SeccompCmpOp as Op, SeccompCondition,
    SeccompFilter, SeccompRule,
};

use crate::sandbox::{check_landlock, compile};

/// The process could not give up its rights.
#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    /// The number of threads is not known, or there are others already: these would keep their
    /// rights.
    #[error("giving up the rights of this process, which has {0} threads")]
    Threads(usize),
    /// `/proc` cannot be read.
    #[error("counting the threads of this process (mount /proc)")]
    Proc(#[source] io::Error),
    /// The folder cannot become the root folder.
    #[error("making {} the root folder of this process", folder.display())]
    Root {
        /// The folder.
        folder: PathBuf,
        /// The reason.
        #[source]
        cause: Errno,
    },
    /// The process is root's, and may not change its root folder.
    #[error(
        "giving up access to the sockets of root: this process runs as root without CAP_SYS_CHROOT, \
         so it could connect to the monitors of QEMU (give it CAP_SYS_CHROOT, or run it as another \
         user)"
    )]
    NoRightToChangeRoot,
    /// Capabilities, or the right to gain some.
    #[error("giving up the capabilities of this process")]
    Capabilities(#[source] Errno),
    /// System calls.
    #[error("restricting the system calls of this process: {0}")]
    SystemCalls(String),
}

/// Sandboxes the process permanently. It must have one thread; those that it starts later have the
/// same rights. Returns the path of `folder` from now on.
///
/// What this kernel's Landlock does not restrict is logged.
///
/// # Errors
/// If it has other threads, or a right cannot be given up. Some may have been given up then.
pub fn sandbox_process(folder: &Path) -> Result<PathBuf, SandboxError> {
    let threads = std::fs::read_dir("/proc/self/task").map_err(SandboxError::Proc)?;
    match threads.count() {
        1 => restrict(folder),
        count => Err(SandboxError::Threads(count)),
    }
}

/// Sandboxes the calling thread and those that it starts. The root folder is the whole process's.
fn restrict(folder: &Path) -> Result<PathBuf, SandboxError> {
    let folder = change_root(folder)?;
    let nothing = CapabilitySets {
        effective: CapabilitySet::empty(),
        permitted: CapabilitySet::empty(),
        inheritable: CapabilitySet::empty(),
    };
    set_capabilities(None, nothing)
        .and_then(|()| set_no_new_privs(true))
        .map_err(SandboxError::Capabilities)?;
    if let Err(why) = read_only(&folder) {
        tracing::warn!(%why, "this process is not fully sandboxed");
    }
    let filters = filters().map_err(|error| Report::new(&error).to_string());
    let applied = filters.and_then(|filters| {
        filters.iter().try_for_each(|filter| {
            let applied = seccompiler::apply_filter(filter);
            applied.map_err(|error| Report::new(&error).to_string())
        })
    });
    applied.map_err(SandboxError::SystemCalls)?;
    Ok(folder)
}

/// Makes the folder the root folder, if the process has the right to, which root needs. Returns its
/// path then.
fn change_root(folder: &Path) -> Result<PathBuf, SandboxError> {
    let has_right =
        capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::SYS_CHROOT));
    match has_right {
        true => {}
        false if geteuid().is_root() => return Err(SandboxError::NoRightToChangeRoot),
        false => return Ok(folder.to_owned()),
    }
    let root = Path::new("/");
    chroot(folder)
        .and_then(|()| chdir(root))
        .map_err(|cause| SandboxError::Root {
            folder: folder.to_owned(),
            cause,
        })?;
    Ok(root.to_owned())
}

/// Denies all access to files except reading in the folder, and to bind or connect TCP sockets.
fn read_only(folder: &Path) -> Result<(), String> {
    let abi = ABI::V6;
    let restrict = || -> Result<_, RulesetError> {
        let mut rules = Ruleset::default()
            .set_compatibility(CompatLevel::BestEffort)
            .handle_access(AccessFs::from_all(abi))?
            .handle_access(AccessNet::from_all(abi))?
            .scope(Scope::from_all(abi))?
            .create()?;
        let reading: BitFlags<AccessFs> = AccessFs::ReadDir | AccessFs::ReadFile;
        // Without the folder, nothing can be read.
        if let Ok(folder) = PathFd::new(folder) {
            rules = rules.add_rule(PathBeneath::new(folder, reading))?;
        }
        rules.restrict_self()
    };
    let status = restrict().map_err(|error| Report::new(&error).to_string())?;
    check_landlock(&status.ruleset, &status.landlock)
}

/// System calls of a server on a thread with an event loop, of threads that read files and sockets,
/// and of the allocator, the standard library's threads and the panic handler.
const ALLOWED: [libc::c_long; 67] = [
    // Descriptors
    libc::SYS_read,
    libc::SYS_readv,
    libc::SYS_pread64,
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_close,
    libc::SYS_lseek,
    libc::SYS_fcntl,
    libc::SYS_dup,
    libc::SYS_pipe2,
    libc::SYS_eventfd2,
    libc::SYS_poll,
    libc::SYS_ppoll,
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_wait,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    // Files: Landlock restricts which, and the filter that they are only read
    libc::SYS_getdents64,
    libc::SYS_fstat,
    libc::SYS_stat,
    libc::SYS_lstat,
    libc::SYS_newfstatat,
    libc::SYS_statx,
    libc::SYS_fadvise64,
    libc::SYS_getcwd,
    // Sockets
    libc::SYS_connect,
    libc::SYS_accept4,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_sendto,
    libc::SYS_sendmsg,
    libc::SYS_getsockopt,
    libc::SYS_setsockopt,
    libc::SYS_getsockname,
    libc::SYS_getpeername,
    libc::SYS_shutdown,
    // Memory
    libc::SYS_madvise,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_brk,
    // Threads. `clone3` is refused by a filter of its own
    libc::SYS_clone3,
    libc::SYS_set_robust_list,
    libc::SYS_rseq,
    libc::SYS_set_tid_address,
    libc::SYS_sched_getaffinity,
    libc::SYS_sched_yield,
    libc::SYS_futex,
    libc::SYS_membarrier,
    libc::SYS_gettid,
    libc::SYS_getpid,
    libc::SYS_geteuid,
    libc::SYS_getuid,
    libc::SYS_getegid,
    libc::SYS_getgid,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_rt_sigreturn,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigaction,
    libc::SYS_sigaltstack,
    libc::SYS_restart_syscall,
    // Time, and random numbers
    libc::SYS_clock_gettime,
    libc::SYS_clock_nanosleep,
    libc::SYS_nanosleep,
    libc::SYS_getrandom,
    libc::SYS_uname,
];

/// `FIONBIO`, `FIONREAD` and `FIOCLEX`: modes and queue lengths of descriptors.
const IOCTLS: [u64; 3] = [0x5421, 0x541b, 0x5451];

/// Namespaces that a new thread could have (`CLONE_NEW*` in `<linux/sched.h>`).
const NAMESPACES: u64 = 0x7e02_0080;

fn filters() -> Result<[BpfProgram; 2], seccompiler::Error> {
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> =
        ALLOWED.iter().map(|&call| (call, Vec::new())).collect();
    let only = |argument, mask: u64, value: u64| {
        let condition = SeccompCondition::new(argument, Len::Dword, Op::MaskedEq(mask), value)?;
        SeccompRule::new(vec![condition])
    };
    let flags = |flags: libc::c_int| u64::from(flags.unsigned_abs());
    // Files are only read.
    let writing = flags(libc::O_WRONLY | libc::O_RDWR | libc::O_CREAT | libc::O_TRUNC);
    rules.insert(libc::SYS_openat, vec![only(2, writing, 0)?]);
    // Only unix sockets.
    let all = u64::from(u32::MAX);
    rules.insert(libc::SYS_socket, vec![only(0, all, flags(libc::AF_UNIX))?]);
    // Threads, but not processes.
    let thread = flags(libc::CLONE_VM | libc::CLONE_THREAD);
    rules.insert(libc::SYS_clone, vec![only(0, thread | NAMESPACES, thread)?]);
    // Limits of this process: the size of its stack is read.
    rules.insert(libc::SYS_prlimit64, vec![only(0, all, 0)?]);
    // Names of threads.
    rules.insert(
        libc::SYS_prctl,
        vec![only(0, all, flags(libc::PR_SET_NAME))?],
    );
    let ioctls = IOCTLS.iter().map(|&number| only(1, all, number));
    rules.insert(libc::SYS_ioctl, ioctls.collect::<Result<_, _>>()?);
    // A filter cannot read the arguments of `clone3`. The C library uses `clone` if there is none.
    let no_clone3 = SeccompFilter::new(
        [(libc::SYS_clone3, Vec::new())].into(),
        SeccompAction::Allow,
        SeccompAction::Errno(libc::ENOSYS.unsigned_abs()),
        std::env::consts::ARCH.try_into()?,
    )?;
    // This one first: the other does not allow to add filters.
    Ok([no_clone3.try_into()?, compile(rules)?])
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, File, OpenOptions};
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream, UdpSocket};
    use std::os::unix::net::{UnixListener, UnixStream};
    use std::process::Command;
    use std::thread;

    const CHILD: &str = "HIKKOSHI_TEST_SANDBOXED_PROCESS";

    /// The test itself runs in a process of its own, because the root folder changes.
    #[test]
    fn a_sandboxed_process_reads_its_folder_and_serves_and_does_nothing_else() {
        if let Some(folder) = std::env::var_os(CHILD) {
            return sandboxed(Path::new(&folder));
        }
        let folder = tempfile::tempdir().unwrap();
        let name = "sandbox_process::tests::\
                    a_sandboxed_process_reads_its_folder_and_serves_and_does_nothing_else";
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", name, "--nocapture"])
            .env(CHILD, folder.path())
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{text}{errors}");
        assert!(text.contains("1 passed"), "{text}");
    }

    fn sandboxed(outside: &Path) {
        let folder = outside.join("status");
        fs::create_dir(&folder).unwrap();
        fs::write(folder.join("file"), "content").unwrap();
        let _inside = UnixListener::bind(folder.join("socket")).unwrap();
        let other = outside.join("other");
        let _other = UnixListener::bind(&other).unwrap();
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let mut client = TcpStream::connect(address).unwrap();
        let is_root = geteuid().is_root();
        assert!(matches!(
            sandbox_process(&folder),
            Err(SandboxError::Threads(2..))
        ));

        if is_root {
            root_without_the_right_is_refused(folder.clone());
        }

        let server = thread::spawn(move || {
            let folder = restrict(&folder).unwrap();
            // The operations that the work needs.
            let (mut stream, _) = listener.accept().unwrap();
            stream.write_all(b"answer").unwrap();
            assert_eq!(fs::read_dir(&folder).unwrap().count(), 2);
            let inner = folder.clone();
            let named = thread::Builder::new().name("reader".into());
            let reader = named.spawn(move || {
                UnixStream::connect(inner.join("socket")).unwrap();
                refused(&inner, address);
                fs::read_to_string(inner.join("file")).unwrap()
            });
            assert_eq!(reader.unwrap().join().unwrap(), "content");
            // All other operations fail.
            refused(&folder, address);
            if is_root {
                assert_eq!(folder, Path::new("/"));
                // Landlock cannot restrict this.
                assert!(UnixStream::connect(&other).is_err());
                assert!(UnixStream::connect("../other").is_err());
            }
            assert!(TcpListener::bind(("127.0.0.1", 0)).is_err());
            assert!(rustix::process::setpriority_process(None, -1).is_err());
            assert!(chroot(&folder).is_err());
            let sets = capabilities(None);
            assert!(sets.is_err(), "reading capabilities is not needed");
        });
        if let Err(panic) = server.join() {
            std::panic::resume_unwind(panic);
        }
        let mut answer = String::new();
        client.read_to_string(&mut answer).unwrap();
        assert_eq!(answer, "answer");
    }

    /// In a thread, whose capabilities are its own.
    fn root_without_the_right_is_refused(folder: PathBuf) {
        let thread = thread::spawn(move || {
            let mut sets = capabilities(None).unwrap();
            sets.effective.remove(CapabilitySet::SYS_CHROOT);
            set_capabilities(None, sets).unwrap();
            restrict(&folder).unwrap_err()
        });
        let error = thread.join().unwrap();
        assert!(
            matches!(error, SandboxError::NoRightToChangeRoot),
            "{error}"
        );
    }

    fn refused(folder: &Path, address: std::net::SocketAddr) {
        for path in ["/etc/passwd", "/proc/self/status", "/dev/null", "../other"] {
            assert!(File::open(path).is_err(), "{path}");
        }
        let file = folder.join("file");
        assert!(OpenOptions::new().append(true).open(&file).is_err());
        assert!(OpenOptions::new().write(true).open(&file).is_err());
        assert!(File::create(folder.join("new")).is_err());
        assert!(fs::remove_file(&file).is_err());
        assert!(fs::rename(&file, folder.join("new")).is_err());
        assert!(fs::set_permissions(&file, mode()).is_err());
        assert!(UnixListener::bind(folder.join("new")).is_err());
        assert!(TcpStream::connect(address).is_err());
        assert!(UdpSocket::bind(("127.0.0.1", 0)).is_err());
        assert!(Command::new("/bin/true").status().is_err());
    }

    fn mode() -> fs::Permissions {
        use std::os::unix::fs::PermissionsExt;
        fs::Permissions::from_mode(0o777)
    }
}
