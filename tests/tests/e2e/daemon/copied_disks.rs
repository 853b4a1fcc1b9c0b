//! Disks are copied to machines that a daemon has started.
#![allow(clippy::unwrap_used)] // a test's failure is the message

use super::{Daemon, Moved, migrate, write_template};
use crate::disks::copied::{assert_nothing_left, blank_disk, full_disk, guest_with};
use hikkoshi_lab::{Disk, DiskFormat};
use hikkoshi_tests::{LONG, Program, TestEnv, unique_address};
use std::sync::Arc;

/// Two disks. The first attempt is cancelled while they are copied: its machine ends, and with it
/// the locks of the images, so that the second one has the same images.
#[test]
#[ignore = "two machines for one guest: make test-daemon"]
fn disks_are_copied_to_a_machine_of_a_template() {
    let env = TestEnv::new();
    let (run, journal) = (env.folder().join("run"), env.folder().join("source"));
    let daemon = Daemon::start(&run, &unique_address());
    let config = |[one, two]: &[Disk; 2]| guest_with(one).disk(two.clone());
    let from = [DiskFormat::Raw, DiskFormat::Qcow2].map(|format| full_disk(&env, format));
    let to = [DiskFormat::Qcow2, DiskFormat::Raw].map(|format| blank_disk(&env, format));
    let source = Arc::new(config(&from).start(env.lab(), "here").unwrap());
    source.wait_ready().unwrap();
    let start = |machine: &str| {
        let there = config(&to).console(source.console().clone());
        let expected = there.expect(env.lab(), machine).unwrap();
        let template = env.folder().join(machine);
        write_template(&template, &expected.command_line());
        let invitation = daemon.invitation(&template, "web", &[]);
        let there = expected.wait(&run.join("machines/web.qmp")).unwrap();
        let begin = |more: &[&str]| {
            let options = [&["--copy-disks", "--to", "-"], more].concat();
            let command = migrate(&source, &journal, &options);
            Program::start_with_input("migrate", command, &invitation)
        };
        (
            there,
            begin(if machine == "first" {
                &["--bandwidth", "4M"]
            } else {
                &[]
            }),
        )
    };

    let (there, mut migrating) = start("first");
    migrating.wait_stderr("copying disks: ");
    migrating.interrupt();
    migrating.wait().assert(1, &["runs at the source"]);
    there.wait_exit(LONG).unwrap();
    daemon.wait_nothing_left();
    assert_nothing_left(&source);

    let (there, mut migrating) = start("second");
    let exit = migrating.wait();
    let moved = Moved {
        name: "web",
        source,
        destination: Arc::new(there),
        invitation: String::new(),
    };
    moved.assert_moved(&exit);
    assert_nothing_left(&moved.source);
    assert_nothing_left(&moved.destination);
    daemon.wait_nothing_left();
}
