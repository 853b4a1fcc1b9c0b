//! Memory that the destination does not have, or that belongs to another QEMU.

use std::sync::Arc;

use error_reporter::Report;
use hikkoshi_qemu::qmp::MonitorSocket;
use hikkoshi_qemu::{Allowed, Overcommit, QemuDestination};

use crate::support::{Mounted, Qemu, RamPath, eventually, options, says, usual, with_each};

use super::start;

#[test]
fn too_little_memory_at_the_destination() {
    with_each(|program| {
        // More than this host has. QEMU does not reserve it.
        let line = "-m 262144 -machine q35,memory-backend=ram -incoming defer \
             -object memory-backend-ram,id=ram,size=256G,reserve=off";
        let qemu = start(program, line);
        let error = QemuDestination::attach(&qemu.qmp()).unwrap_err();
        says(
            &error,
            &[
                "\"ram\" needs 264",
                "MiB are available on this host",
                "add swap",
                "--allow-overcommit",
            ],
        );
        let none = Allowed::default();
        QemuDestination::attach_allowing(
            Arc::new(MonitorSocket::new(qemu.qmp())),
            &none,
            Overcommit::Allow,
        )
        .unwrap();
    });
}

/// A destination that was started with the source's file would destroy the guest's memory.
#[test]
fn a_destination_with_the_memory_of_a_running_guest() {
    with_each(|program| {
        let running = Qemu::usual(program, "");
        let there = running.with_the_same_memory(program, "-incoming defer");
        let before = (there.traces(), there.state());
        let error = QemuDestination::attach(&there.qmp()).unwrap_err();
        says(
            &error,
            &["\"ram\"", running.ram.as_str(), "is also mapped by process"],
        );
        // QEMU closes the session's socket a moment later.
        eventually("what it was before", || {
            (there.traces(), there.state()) == before
        });
        running.source();
    });
}

/// With `async-teardown` QEMU starts a process that shares its memory.
#[test]
fn a_destination_with_a_process_for_its_teardown() {
    with_each(|program| {
        let option = match program.is_old() {
            true => "-async-teardown",
            false => "-run-with async-teardown=on",
        };
        let qemu = Qemu::usual(program, &format!("{option} -incoming defer"));
        qemu.destination();
    });
}

#[test]
fn no_free_space_at_the_destination() {
    let mount = Mounted::new("tmpfs", "size=48m");
    with_each(|program| {
        let start = || {
            let ram = RamPath::in_folder(mount.path());
            let mut all = usual(32, &ram);
            all.extend(options("-incoming defer"));
            Qemu::start(program, ram, &all)
        };
        let first = start();
        first.destination();
        std::fs::write(mount.path().join("other"), vec![1; 20 << 20]).unwrap();
        let error = QemuDestination::attach(&first.qmp()).unwrap_err();
        let text = Report::new(&error).to_string();
        assert!(text.contains("33554432 more are needed"), "{text}");
        // Allocated parts of the file need no more space: 12 + 20 MiB are allocated,
        // 16 are free, 12 are needed.
        std::fs::write(mount.path().join("other"), vec![1; 12 << 20]).unwrap();
        let file = std::fs::File::options().write(true).open(&first.ram.0);
        std::os::unix::fs::FileExt::write_all_at(&file.unwrap(), &vec![1; 20 << 20], 0).unwrap();
        first.destination();
        std::fs::remove_file(mount.path().join("other")).unwrap();
    });
}

#[test]
fn no_huge_pages_at_the_destination() {
    let mount = Mounted::new("hugetlbfs", "pagesize=2M");
    with_each(|program| {
        let ram = RamPath::in_folder(mount.path());
        let line = format!(
            "-m 262144 -machine q35,memory-backend=ram -incoming defer \
             -object memory-backend-file,id=ram,size=256G,mem-path={},share=on,reserve=off",
            ram.as_str()
        );
        let qemu = Qemu::start(program, ram, &options(&line));
        let error = QemuDestination::attach(&qemu.qmp()).unwrap_err();
        // More than this machine has; QEMU did not reserve them.
        let text = Report::new(&error).to_string();
        assert!(text.contains("131072 more huge pages"), "{text}");
    });
}
