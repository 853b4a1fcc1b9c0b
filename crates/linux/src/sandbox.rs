//! Sandbox for threads that read data from a peer.
//!
//! A peer that exploits a bug in the code that reads its data would get the rights of the thread.
//! So each such thread, when it starts and only for itself, gives up all capabilities, access to
//! files and new connections (Landlock, `Documentation/userspace-api/landlock.rst`), and all system
//! calls except those needed to move pages (seccomp, `seccomp_filter.rst`). Its descriptors were
//! opened before.
//!
//! A sandboxed thread can still use all descriptors that the process has open, including QEMU's QMP
//! socket: it cannot open files, but it can call `write` on any open descriptor.
//!
//! The main thread keeps its privileges: detaching from QEMU at the end requires `CAP_SYS_PTRACE`.
//! Until the thread of a link runs, the main thread decodes control messages itself (the offer and
//! its answer, and the states of both sides when a migration is resumed); after that it only acts
//! on decoded messages. Threads that read only from the kernel (page faults) or from QEMU also keep
//! their privileges.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU8, Ordering};

use error_reporter::Report;
use landlock::{
    ABI, Access, AccessFs, AccessNet, CompatLevel, Compatible, LandlockStatus, Ruleset,
    RulesetAttr, RulesetError, RulesetStatus, Scope,
};
use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities, set_no_new_privs};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen as Len, SeccompCmpOp as Op, SeccompCondition,
    SeccompFilter, SeccompRule,
};

/// A right that a thread gives up. The value is a bit in [`WARNED`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Restriction {
    Capabilities = 1,
    NewPrivileges = 2,
    Files = 4,
    SystemCalls = 8,
}

/// Restrictions for which a warning was logged, so that each is logged once and not for each
/// thread.
static WARNED: AtomicU8 = AtomicU8::new(0);

/// Sandboxes the calling thread permanently, as far as this kernel supports it; a restriction that
/// fails is logged once and skipped. This is a second line of defence: all data from a peer is
/// validated first.
pub fn sandbox_thread() {
    let nothing = CapabilitySets {
        effective: CapabilitySet::empty(),
        permitted: CapabilitySet::empty(),
        inheritable: CapabilitySet::empty(),
    };
    warn_if_failed(Restriction::Capabilities, set_capabilities(None, nothing));
    warn_if_failed(Restriction::NewPrivileges, set_no_new_privs(true));
    warn_if_failed(Restriction::Files, restrict_with_landlock());
    warn_if_failed(Restriction::SystemCalls, restrict_system_calls());
}

fn warn_if_failed(what: Restriction, given_up: Result<(), impl Display>) {
    let Err(why) = given_up else { return };
    let bit = what as u8;
    if WARNED.fetch_or(bit, Ordering::Relaxed) & bit == 0 {
        tracing::warn!(?what, %why, "a thread that reads from the network is not fully sandboxed");
    }
}

/// Denies the thread to open files and to bind or connect sockets.
fn restrict_with_landlock() -> Result<(), String> {
    let abi = ABI::V6;
    let restrict = || -> Result<_, RulesetError> {
        Ruleset::default()
            .set_compatibility(CompatLevel::BestEffort)
            .handle_access(AccessFs::from_all(abi))?
            .handle_access(AccessNet::from_all(abi))?
            .scope(Scope::from_all(abi))?
            .create()?
            .restrict_self()
    };
    let status = restrict().map_err(|error| Report::new(&error).to_string())?;
    check_landlock(&status.ruleset, &status.landlock)
}

/// Checks that all restrictions are enforced; the error lists the others.
pub(crate) fn check_landlock(
    ruleset: &RulesetStatus,
    landlock: &LandlockStatus,
) -> Result<(), String> {
    let abi = match landlock {
        LandlockStatus::Available { effective_abi, .. } => *effective_abi,
        LandlockStatus::NotEnabled | LandlockStatus::NotImplemented => ABI::Unsupported,
    };
    match ruleset {
        RulesetStatus::FullyEnforced => Ok(()),
        RulesetStatus::NotEnforced => Err("this kernel does not support Landlock".to_owned()),
        RulesetStatus::PartiallyEnforced => Err(format!(
            "this kernel's Landlock does not restrict {}",
            unsupported_by(abi).join(", ")
        )),
    }
}

/// The accesses that this version of Landlock does not restrict, with the kernel version that does
/// ("Previous limitations" in `landlock.rst`).
fn unsupported_by(abi: ABI) -> Vec<&'static str> {
    let parts = [
        (ABI::V2, "moving files to other folders (Linux 5.19)"),
        (ABI::V3, "truncating files (6.2)"),
        (ABI::V4, "connecting and listening (6.7)"),
        (ABI::V5, "ioctls of devices (6.10)"),
        (ABI::V6, "signals and abstract unix sockets (6.12)"),
    ];
    let missing = parts.into_iter().filter(|&(since, _)| abi < since);
    missing.map(|(_, part)| part).collect()
}

fn restrict_system_calls() -> Result<(), String> {
    let filter = FILTER.as_ref().map_err(Clone::clone)?;
    seccompiler::apply_filter(filter).map_err(|error| Report::new(&error).to_string())
}

/// The compiled filter, the same for all threads.
static FILTER: LazyLock<Result<BpfProgram, String>> =
    LazyLock::new(|| build_filter().map_err(|error| Report::new(&error).to_string()));

/// System calls of the sandboxed threads, and of the allocator, the standard library's threads and
/// the panic handler.
const ALLOWED: [libc::c_long; 45] = [
    libc::SYS_read,
    libc::SYS_readv,
    libc::SYS_pread64,
    libc::SYS_preadv,
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_pwrite64,
    libc::SYS_pwritev,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_sendto,
    libc::SYS_sendmsg,
    libc::SYS_poll,
    libc::SYS_ppoll,
    libc::SYS_getsockopt,
    libc::SYS_setsockopt,
    libc::SYS_getsockname,
    libc::SYS_getpeername,
    libc::SYS_shutdown,
    libc::SYS_close,
    libc::SYS_fstat,
    libc::SYS_lseek,
    libc::SYS_fallocate,
    libc::SYS_futex,
    libc::SYS_madvise,
    libc::SYS_membarrier,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_brk,
    libc::SYS_clock_gettime,
    libc::SYS_clock_nanosleep,
    libc::SYS_nanosleep,
    libc::SYS_sched_yield,
    libc::SYS_getrandom,
    libc::SYS_gettid,
    libc::SYS_getpid,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_rt_sigreturn,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigaction,
    libc::SYS_sigaltstack,
    libc::SYS_restart_syscall,
    libc::SYS_set_robust_list,
    libc::SYS_rseq,
];

/// `ioctl`s, as mask and value: userfaultfd (`UFFDIO`, 0xAA), pagemap (`PAGEMAP_SCAN`, 'f' 16),
/// KVM's dirty logs (`KVM_GET_DIRTY_LOG`, `KVM_CLEAR_DIRTY_LOG`, `KVM_RESET_DIRTY_RINGS`), and
/// socket queue lengths (`SIOCOUTQ`, `FIONREAD`). A filter cannot check the descriptor. The program
/// `hikkoshi` has none of KVM; in a monitor that embeds the engine, such a thread could clear the
/// log.
const IOCTLS: [(u64, u64); 7] = [
    (0xff00, 0xaa00),
    (0xffff, 0x6610),
    (0xffff_ffff, 0x4010_ae42),
    (0xffff_ffff, 0xc018_aec0),
    (0xffff_ffff, 0xaec7),
    (0xffff, 0x5411),
    (0xffff, 0x541b),
];

fn build_filter() -> Result<BpfProgram, seccompiler::Error> {
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> =
        ALLOWED.iter().map(|&call| (call, Vec::new())).collect();
    let ioctls = IOCTLS.iter().map(|&(mask, value)| {
        let condition = SeccompCondition::new(1, Len::Dword, Op::MaskedEq(mask), value)?;
        SeccompRule::new(vec![condition])
    });
    rules.insert(libc::SYS_ioctl, ioctls.collect::<Result<_, _>>()?);
    // A duplicate of a descriptor, by which another thread can shut a connection down.
    let duplicate = u64::from(libc::F_DUPFD_CLOEXEC.unsigned_abs());
    let duplicate = SeccompCondition::new(1, Len::Dword, Op::Eq, duplicate)?;
    rules.insert(libc::SYS_fcntl, vec![SeccompRule::new(vec![duplicate])?]);
    compile(rules)
}

/// A filter that allows these calls, memory that is not executable, and signals of the process to
/// itself, and refuses all others.
pub(crate) fn compile(
    mut rules: BTreeMap<i64, Vec<SeccompRule>>,
) -> Result<BpfProgram, seccompiler::Error> {
    let exec = u64::from(libc::PROT_EXEC.unsigned_abs());
    let data = SeccompCondition::new(2, Len::Dword, Op::MaskedEq(exec), 0)?;
    for call in [libc::SYS_mmap, libc::SYS_mprotect] {
        rules.insert(call, vec![SeccompRule::new(vec![data.clone()])?]);
    }
    // A panic that aborts sends a signal to its own process.
    let own = SeccompCondition::new(0, Len::Dword, Op::Eq, std::process::id().into())?;
    rules.insert(libc::SYS_tgkill, vec![SeccompRule::new(vec![own])?]);
    let refused = SeccompAction::Errno(libc::EPERM.unsigned_abs());
    let filter = SeccompFilter::new(
        rules,
        refused,
        SeccompAction::Allow,
        std::env::consts::ARCH.try_into()?,
    )?;
    Ok(filter.try_into()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::{Read, Seek, Write};
    use std::net::{TcpListener, TcpStream};
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;
    use std::thread;

    #[test]
    fn a_sandboxed_thread_uses_open_descriptors_and_opens_none() {
        let mut file = tempfile::tempfile().unwrap();
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let mut stream = TcpStream::connect(address).unwrap();
        let (mut peer, _) = listener.accept().unwrap();
        thread::spawn(move || {
            sandbox_thread();
            // The operations that the work needs.
            file.write_all(b"page").unwrap();
            file.rewind().unwrap();
            stream.write_all(b"page").unwrap();
            drop(stream.try_clone().unwrap());
            let mut memory = vec![vec![0_u8; 4 << 20]; 4];
            memory[3][1 << 20] = 1;
            drop(memory);
            // All other operations fail.
            for path in ["/etc/passwd", "/proc/self/status", "/dev/null"] {
                assert!(File::open(path).is_err(), "{path}");
            }
            assert!(File::create("/tmp/hikkoshi-sandboxed").is_err());
            let flags = rustix::fs::OFlags::NONBLOCK;
            assert!(rustix::fs::fcntl_setfl(&stream, flags).is_err());
            assert!(TcpStream::connect(address).is_err());
            assert!(TcpListener::bind(("127.0.0.1", 0)).is_err());
            assert!(Command::new("true").status().is_err());
            let mut text = String::new();
            file.read_to_string(&mut text).unwrap();
            assert_eq!(text, "page");
        })
        .join()
        .unwrap();
        let mut received = [0; 4];
        peer.read_exact(&mut received).unwrap();
        assert_eq!(&received, b"page");
        assert_eq!(
            WARNED.load(Ordering::Relaxed),
            0,
            "all restrictions are supported"
        );
        // Other threads are not restricted.
        File::open("/proc/self/status").unwrap();
        assert!(Command::new("true").status().unwrap().success());
    }

    /// The verdict of the filter for a call (`seccomp_data` in `seccomp(2)`). Interprets the
    /// instructions that the filter uses as the kernel does (classic BPF).
    #[cfg(target_arch = "x86_64")]
    fn filter_verdict(call: libc::c_long, arguments: [u64; 6]) -> u32 {
        let program = FILTER.as_ref().unwrap();
        // AUDIT_ARCH_X86_64, from <linux/audit.h>
        let head = [u32::try_from(call).unwrap(), 0xc000_003e, 0, 0];
        let halves = |number: u64| [number & 0xffff_ffff, number >> 32];
        let arguments = arguments.into_iter().flat_map(halves);
        let arguments = arguments.map(|half| u32::try_from(half).unwrap());
        let data: Vec<u32> = head.into_iter().chain(arguments).collect();
        let (mut at, mut loaded) = (0, 0);
        loop {
            let step = &program[at];
            at += 1;
            let jump = |taken: bool| usize::from(if taken { step.jt } else { step.jf });
            match step.code {
                0x20 => loaded = data[step.k as usize / 4],
                0x54 => loaded &= step.k,
                0x05 => at += step.k as usize,
                0x15 => at += jump(loaded == step.k),
                0x25 => at += jump(loaded > step.k),
                0x35 => at += jump(loaded >= step.k),
                0x06 => return step.k,
                code => panic!("instruction {code:#x}"),
            }
        }
    }

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn system_calls_are_filtered_by_their_arguments() {
        // <linux/seccomp.h>
        let (allowed, refused) = (0x7fff_0000, 0x0005_0000 | libc::EPERM.unsigned_abs());
        let own = u64::from(std::process::id());
        let signal = |to| filter_verdict(libc::SYS_tgkill, [to, 7, 6, 0, 0, 0]);
        assert_eq!(signal(own), allowed);
        for other in [own - 1, own + 1, 0, 1, u64::from(u32::MAX)] {
            assert_eq!(signal(other), refused, "{other}");
        }
        let ioctl = |number| filter_verdict(libc::SYS_ioctl, [3, number, 0, 0, 0, 0]);
        // UFFDIO_COPY and PAGEMAP_SCAN; KVM's dirty logs; TIOCSTI, KVM_RUN, and
        // KVM_SET_USER_MEMORY_REGION
        for (number, verdict) in [
            (0xc028_aa03, allowed),
            (0xc060_6610, allowed),
            (0x4010_ae42, allowed),
            (0xc018_aec0, allowed),
            (0xaec7, allowed),
            (0x5412, refused),
            (0xae80, refused),
            (0x4020_ae46, refused),
        ] {
            assert_eq!(ioctl(number), verdict, "{number:#x}");
        }
        let map = |protection| filter_verdict(libc::SYS_mmap, [0, 4096, protection, 0x22, 0, 0]);
        assert_eq!((map(3), map(7), map(4)), (allowed, refused, refused));
        for call in [
            libc::SYS_openat,
            libc::SYS_execve,
            libc::SYS_ptrace,
            libc::SYS_kill,
        ] {
            assert_eq!(
                filter_verdict(call, [own, 0, 0, 0, 0, 0]),
                refused,
                "{call}"
            );
        }
    }

    #[test]
    fn the_error_lists_what_an_older_kernel_does_not_restrict() {
        let check = |ruleset, effective_abi| {
            let landlock = LandlockStatus::Available {
                effective_abi,
                kernel_abi: None,
            };
            check_landlock(&ruleset, &landlock)
        };
        assert_eq!(check(RulesetStatus::FullyEnforced, ABI::V6), Ok(()));
        let partly = |abi| check(RulesetStatus::PartiallyEnforced, abi).unwrap_err();
        // Linux 6.10
        let lacks = partly(ABI::V5);
        assert!(lacks.contains("signals") && !lacks.contains("connecting"));
        // Linux 6.2
        let lacks = partly(ABI::V3);
        assert!(lacks.contains("signals") && lacks.contains("connecting"));
        let none = check(RulesetStatus::NotEnforced, ABI::Unsupported).unwrap_err();
        assert!(none.contains("not support Landlock"), "{none}");
    }

    const CHILD: &str = "HIKKOSHI_TEST_CHILD";

    /// Runs test `name` of this program again in a child process, to check the effects from
    /// outside.
    fn run_in_child(name: &str, backtrace: &str) -> std::process::Output {
        Command::new(std::env::current_exe().unwrap())
            .args(["--exact", &format!("sandbox::tests::{name}"), "--nocapture"])
            .env(CHILD, "1")
            .env("RUST_BACKTRACE", backtrace)
            .output()
            .unwrap()
    }

    fn run_sandboxed(end: fn()) -> thread::Result<()> {
        let thread = thread::Builder::new().name("dst-test".into());
        let confined = thread.spawn(move || {
            sandbox_thread();
            end();
        });
        confined.unwrap().join()
    }

    #[test]
    fn a_panic_in_a_sandboxed_thread_is_printed() {
        if std::env::var_os(CHILD).is_some() {
            assert!(run_sandboxed(|| panic!("on purpose")).is_err());
            return;
        }
        for backtrace in ["0", "1"] {
            let output = run_in_child("a_panic_in_a_sandboxed_thread_is_printed", backtrace);
            let stderr = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{stderr}");
            let whole = stderr.contains("dst-test") && stderr.contains("on purpose");
            assert!(whole, "{stderr}");
        }
    }

    #[test]
    fn a_sandboxed_thread_can_abort_the_process() {
        if std::env::var_os(CHILD).is_some() {
            let _ = run_sandboxed(|| std::process::abort());
            return;
        }
        let output = run_in_child("a_sandboxed_thread_can_abort_the_process", "0");
        assert_eq!(output.status.signal(), Some(libc::SIGABRT), "{output:?}");
    }
}
