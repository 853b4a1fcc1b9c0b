//! Guests whose migration is not finished keep their names and routes.
#![allow(clippy::unwrap_used)] // a test's failure is the message

use super::fifo::{make_fifo, unblock, wait_blocked};
use super::{Daemon, Moved};
use hikkoshi_linux::inject::inject;
use hikkoshi_linux::{InjectError, Process};
use hikkoshi_tests::{
    Program, SplitBrainWatcher, TestEnv, assert_command_refused, hikkoshi, unique_address,
};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::process::Command;
use std::sync::Arc;

/// Ends a process with this exit status.
fn end_with(process: Pid, status: u64) {
    const EXIT_GROUP: i64 = 231; // x86-64
    let pid = process.as_raw_nonzero().get().cast_unsigned();
    let process = Arc::new(Process::open(pid).unwrap());
    let ended = inject(
        &process,
        move |remote| {
            let arguments = [status, 0, 0, 0, 0, 0];
            remote.syscall("ending it", EXIT_GROUP, arguments).map(drop)
        },
        |()| {},
    );
    // The call does not return.
    let _: InjectError = ended.unwrap_err();
}

/// The receiver has ended, and no other process has resumed the migration: its name is not free,
/// and its source can reach it again, also when its journal could not be read for a while, and when
/// the guest has all of its pages.
#[test]
#[ignore = "several engines: make test-daemon"]
fn an_unfinished_migration_keeps_its_name_and_its_route() {
    let env = TestEnv::new();
    let run = env.folder().join("run");
    let mut daemon = Daemon::start(&run, &unique_address());
    let option = ["--receive-option=--retry-for=0"];
    let guest = Moved::start(&env, &daemon, "two", &option);
    let journal = env.folder().join("source");
    let watcher = SplitBrainWatcher::start(&guest.source, &guest.destination);
    // Nothing is pushed, so the migration stays in post-copy.
    let stay = "--background-delay 3600000 --mode postcopy --to -";
    let stay: Vec<_> = stay.split(' ').collect();
    let migrate = guest.migrate(&journal, &stay);
    let mut migrate = Program::start_with_input("migrate", migrate, &guest.invitation);
    daemon
        .program
        .wait_stderr("two: hikkoshi: the guest runs here now");
    let is_taken = |daemon: &Daemon| {
        let again = daemon.invite(&["--template", "/nowhere", "--name", "two"]);
        assert_command_refused(again, 1, &["a guest with the name two"]);
        let withdraw = daemon.invite(&["--withdraw", "two"]);
        assert_command_refused(withdraw, 1, &[]);
    };
    is_taken(&daemon);

    // As that of another version.
    let file = daemon.wait_file("destination-", ".json");
    let content = fs::read(&file).unwrap();
    fs::write(&file, "{}").unwrap();
    kill_process(daemon.receivers("two")[0], Signal::KILL).unwrap();
    let unreadable = "a journal cannot be read";
    daemon.program.wait_stderr(unreadable);
    daemon
        .program
        .wait_stderr("guest two: its receiver was killed");
    is_taken(&daemon);
    daemon.program.kill();
    daemon = Daemon::start(&run, &daemon.address.clone());
    daemon.program.wait_stderr(unreadable);
    is_taken(&daemon);
    fs::write(&file, content).unwrap();
    let resuming = "guest two: resuming its migration";
    daemon.program.wait_stderr(resuming);
    migrate.wait_stderr("reconnected to the destination");

    // As after a panic.
    end_with(daemon.receivers("two")[0], 101);
    daemon
        .program
        .wait_stderr("guest two: its receiver was killed (exit status: 101)");
    is_taken(&daemon);
    daemon.program.wait_stderr_count(resuming, 2);
    migrate.wait_stderr_count("reconnected to the destination", 2);

    // It does not wait for its source.
    let pid = migrate.pid().to_string();
    migrate.kill();
    migrate.wait_stderr("'hikkoshi migrate' was interrupted");
    let mut cancel = Command::new(hikkoshi());
    cancel.args(["cancel", &pid, "--journal"]).arg(&journal);
    let parts = ["was killed", "To resume it: hikkoshi migrate --resume="];
    assert_command_refused(cancel, 1, &parts);
    daemon
        .program
        .wait_stderr("guest two: its migration is not finished");
    is_taken(&daemon);
    daemon.program.wait_stderr_count(resuming, 3);

    // All pages arrive, and the source is killed before it knows that.
    let resume = ["--resume", "--background-delay", "0"];
    let resume = || Program::start("migrate --resume", guest.migrate(&journal, &resume));
    let blocked = file.with_extension("new");
    make_fifo(&blocked);
    let mut killed = resume();
    let receiver = daemon.receivers("two")[0];
    wait_blocked(receiver);
    killed.signal(Signal::STOP);
    unblock(receiver, &blocked);
    daemon.program.wait_stderr("guest two: received");
    killed.kill();
    is_taken(&daemon);
    daemon.program.wait_stderr_count(resuming, 4);
    guest.assert_moved(&resume().wait());
    watcher.finish();
    daemon.wait_nothing_left();
}
