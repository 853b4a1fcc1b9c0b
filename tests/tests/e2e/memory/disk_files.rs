//! Memory in a shared file on a disk file system: the kernel writes its pages back and evicts them
//! while the guest is moved from there. A destination receives into such a file by pre-copy only.
#![allow(clippy::unwrap_used)] // a test's failure is the message

use hikkoshi_lab::{Ram, RamBackend, Vm, VmConfig, Workload};
use hikkoshi_tests::{Breakpoint, Guest, MessageKind, MigrationPlan, TestEnv, Victim, log};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// ext4 and XFS; see statfs(2).
const DISK_MAGICS: [i64; 2] = [0xef53, 0x5846_5342];

/// Time between two evictions: other tests use the same disk.
const PAUSE: Duration = Duration::from_millis(100);

/// So slowly that pages are evicted between two readings of the dirty log.
const SLOWLY: [&str; 2] = ["--bandwidth", "100MB"];

/// Each page fault that reads from the disk was an evicted page.
const FEWEST_FAULTS: u64 = 20;

/// A guest in a file on a disk, and in private memory.
fn machines(workload: Workload) -> [VmConfig; 2] {
    let workload = workload.option("every_ms", 200);
    let on_disk = Ram::new(RamBackend::DiskFile { share: true }, 256).default_name();
    let private = Ram::new(RamBackend::Default, 256);
    [on_disk, private].map(|ram| VmConfig::new().ram(ram).workload(workload.clone()))
}

/// Whether the machine's memory is on a disk. A build folder on another file system is not tested,
/// which is logged.
pub(super) fn is_on_disk(vm: &Vm) -> bool {
    let [path]: &[PathBuf; 1] = vm.ram_files().try_into().unwrap();
    let magic: i64 = rustix::fs::statfs(path).unwrap().f_type;
    let is_on_disk = DISK_MAGICS.contains(&magic);
    if !is_on_disk {
        let path = path.display();
        log(format!(
            "NOT TESTED: {path} is on {magic:#x}, not on ext4 or XFS"
        ));
    }
    is_on_disk
}

/// Writes the machine's memory back and evicts it, until this is dropped.
struct Eviction {
    vm: Arc<Vm>,
    faults_before: u64,
    end: Arc<AtomicBool>,
    thread: Option<JoinHandle<u32>>,
}

impl Eviction {
    fn start(vm: &Arc<Vm>) -> Self {
        let faults_before = vm.major_faults().unwrap();
        vm.evict_ram().unwrap();
        let end = Arc::new(AtomicBool::new(false));
        let (evicted, stop) = (Arc::clone(vm), Arc::clone(&end));
        let work = move || {
            let mut rounds = 0;
            // The source's QEMU may end.
            while !stop.load(Ordering::SeqCst) && evicted.evict_ram().is_ok() {
                rounds += 1;
                std::thread::sleep(PAUSE);
            }
            rounds
        };
        Self {
            faults_before,
            vm: Arc::clone(vm),
            end,
            thread: Some(std::thread::spawn(work)),
        }
    }

    /// Ends it, and asserts that pages were evicted that the guest used again.
    fn finish(mut self, what: &str) {
        self.end.store(true, Ordering::SeqCst);
        let rounds = self.thread.take().unwrap().join().unwrap();
        let faults = self.vm.major_faults().unwrap() - self.faults_before;
        log(format!(
            "{what}: the memory was evicted {rounds} times; the guest read {faults} times from disk"
        ));
        assert!(faults >= FEWEST_FAULTS, "{faults} page faults read a disk");
    }
}

impl Drop for Eviction {
    fn drop(&mut self) {
        self.end.store(true, Ordering::SeqCst);
    }
}

/// A guest that moves from a disk, and back.
struct Mover<'a> {
    guest: Guest<'a>,
    on_disk: VmConfig,
    private: VmConfig,
}

impl<'a> Mover<'a> {
    /// Boots the guest on the disk; `None` if the build folder is not on such a disk.
    fn boot(env: &'a TestEnv, workload: Workload) -> Option<Self> {
        let [on_disk, private] = machines(workload);
        let guest = Guest::boot(env, on_disk.clone());
        is_on_disk(guest.vm()).then_some(Self {
            guest,
            on_disk,
            private,
        })
    }

    /// Moves it into private memory, while the source's memory is evicted.
    fn leave(&mut self, mode: &'static str) {
        let eviction = Eviction::start(self.guest.vm());
        let plan = MigrationPlan::new(mode).destination_config(self.private.clone());
        let plan = plan.migrate_args(&SLOWLY);
        let (exits, finished) = self.guest.start_migration(&plan).wait();
        eviction.finish(mode);
        self.guest.complete_migration(&exits, finished, "running");
    }

    fn return_to_disk(&mut self) {
        let plan = MigrationPlan::new("precopy").destination_config(self.on_disk.clone());
        self.guest.migrate(&plan);
        assert!(is_on_disk(self.guest.vm()));
    }

    /// Leaves by post-copy, while the source's QEMU and its engine are killed. The file stays.
    fn leave_dying_source(&mut self) {
        self.guest.vm().evict_ram().unwrap();
        let plan = MigrationPlan::new("postcopy").destination_config(self.private.clone());
        let at = Breakpoint::after(MessageKind::Pages).nth(400);
        Victim::SourceAndQemu.interrupt(&mut self.guest, plan, at);
    }
}

#[test]
#[ignore = "one of its kind runs in CI: make matrix"]
fn evicted_pages_are_moved() {
    let env = TestEnv::new();
    // Most pages that are written are not used again before they are evicted.
    let workload = Workload::verify(32).rate(3000);
    let Some(mut mover) = Mover::boot(&env, workload) else {
        return;
    };
    mover.leave("hybrid");
    mover.return_to_disk();
    mover.leave_dying_source();
}

#[test]
#[ignore = "long: make matrix"]
fn evicted_pages_are_moved_in_every_mode() {
    let env = TestEnv::new();
    // Memory that is used for the first time was a hole of the file.
    let workload = Workload::verify(64).threads(2).rate(5000).grow(4, 64);
    let Some(mut mover) = Mover::boot(&env, workload) else {
        return;
    };
    for mode in ["precopy", "hybrid", "postcopy"] {
        for _ in 0..2 {
            mover.leave(mode);
            mover.return_to_disk();
        }
    }
}
