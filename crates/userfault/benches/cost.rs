//! Measures how long creating a userfaultfd in another process, closing it, and installing pages
//! take on this machine: `cargo bench -p hikkoshi-userfault`. Requires root.

// The unsafe blocks are accesses to our own mapping. The output is for people to read.
#![allow(unsafe_code, clippy::undocumented_unsafe_blocks)]
#![allow(clippy::unwrap_used, clippy::print_stdout)]

#[path = "../../linux/tests/common/mod.rs"]
mod common;

use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use common::{HugePages, Target, map_shared, memory_file};
use hikkoshi_linux::{HostAddr, HostRange};
use hikkoshi_userfault::{Features, RegisterMode, RemoteUserfault, Userfault};

const ROUNDS: usize = 1000;

fn main() {
    injection("a sleeping process", || {});
    injection(
        "a sleeping process without the right to one",
        common::become_nobody,
    );
    copies("copy of one 4 KiB page", false, 4 << 10);
    copies("copy of 64 pages of 4 KiB", false, 256 << 10);
    if let Some(_pages) = HugePages::reserve(16) {
        copies("copy of a 2 MiB page", true, 2 << 20);
    }
}

fn injection(what: &str, user: fn()) {
    let target = Target::spawn(|shared| {
        user();
        shared.set(0, 1);
        std::thread::sleep(Duration::from_secs(600));
        0
    });
    target.shared.wait(0, 1);
    let (mut creating, mut closing) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let start = Instant::now();
        let remote = RemoteUserfault::create(target.pid, Features::FOR_MISSING).unwrap();
        creating.push(start.elapsed());
        let start = Instant::now();
        remote.close_remote().unwrap();
        closing.push(start.elapsed());
    }
    report(&format!("create in {what}"), creating);
    report(&format!("close in {what}"), closing);
}

fn copies(what: &str, huge: bool, bytes: usize) {
    const MAX_BYTES: usize = 32 << 20;
    let file = memory_file(MAX_BYTES as u64, huge);
    let memory = map_shared(MAX_BYTES, file.as_raw_fd());
    let start = HostAddr(memory.expose_provenance() as u64);
    let own = Userfault::create_for_self(Features::FOR_MISSING).unwrap();
    let range = HostRange::new(start, MAX_BYTES as u64);
    own.register(range, RegisterMode::MISSING).unwrap();
    let content = vec![1; bytes];
    let mut times = Vec::new();
    for part in (0..MAX_BYTES as u64).step_by(bytes).take(ROUNDS) {
        let at = start.checked_add(part).unwrap();
        let start = Instant::now();
        let host_page = if huge { bytes } else { 4096 };
        let copied = own.copy_unless(at, &content, host_page as u64, &mut |_| true);
        times.push(start.elapsed());
        assert_eq!(copied.unwrap().installed, bytes as u64);
    }
    report(what, times);
    own.unregister(range).unwrap();
    unsafe { libc::munmap(memory.cast(), MAX_BYTES) };
}

fn report(what: &str, mut times: Vec<Duration>) {
    times.sort_unstable();
    let at = |percent: usize| times[(times.len() - 1) * percent / 100];
    println!(
        "{what}: median {:?}, p99 {:?}, longest {:?}",
        at(50),
        at(99),
        at(100)
    );
}
