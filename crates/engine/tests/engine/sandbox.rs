//! Every thread that reads from the peer has dropped the privileges that it does not need: checked
//! from another thread, during a migration.

use std::fs;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use hikkoshi_engine::{CancelFlag, Mode};
use hikkoshi_link::{Address, Listener, Remote, hello};
use hikkoshi_wire::{MigrationId, Role};

use crate::run::{Setup, open, watchdog};
use hikkoshi_lab::relay::{Fate, Message};

/// How many checks, 5 ms apart, before a thread counts as not sandboxed: a new thread has its name
/// before its sandbox.
const LOOKS: usize = 2000;

/// Checks that there are threads whose names begin with each of `names`, and that all of these are
/// sandboxed.
fn all_sandboxed(names: &[&str]) -> Result<(), String> {
    // A thread that ends meanwhile is ignored.
    let threads: Vec<String> = fs::read_dir("/proc/self/task")
        .unwrap()
        .filter_map(|task| fs::read_to_string(task.ok()?.path().join("status")).ok())
        .collect();
    for name in names {
        // proc_pid_status(5)
        let named = format!("Name:\t{name}");
        let these: Vec<_> = threads.iter().filter(|t| t.starts_with(&named)).collect();
        if these.is_empty() {
            return Err(format!("there is no {name}"));
        }
        let given_up = ["CapEff:\t0000000000000000", "NoNewPrivs:\t1", "Seccomp:\t2"];
        let is_free = |status: &&&String| !given_up.iter().all(|fact| status.contains(fact));
        if let Some(free) = these.iter().find(is_free) {
            return Err(format!("{name} is free: {free}"));
        }
    }
    Ok(())
}

fn wait_until_sandboxed(names: &[&str]) -> Result<(), String> {
    let mut seen = all_sandboxed(names);
    for _ in 0..LOOKS {
        if seen.is_ok() {
            break;
        }
        thread::sleep(Duration::from_millis(5));
        seen = all_sandboxed(names);
    }
    seen
}

/// Holds the first background page until `names` are seen sandboxed.
fn moved_by(names: &'static [&'static str], mode: Mode) {
    let mut setup = Setup::new(mode);
    setup.options.links = 2;
    let seen = Arc::new(Mutex::new(None));
    let looked = Arc::clone(&seen);
    setup.relay(move |message: &Message| {
        let background = matches!(message.role, Role::Background { .. });
        if background && message.name == "Pages" {
            looked
                .lock()
                .unwrap()
                .get_or_insert_with(|| wait_until_sandboxed(names));
        }
        Fate::Pass
    });
    setup.run().moved(true);
    assert_eq!(*seen.lock().unwrap(), Some(Ok(())));
}

#[test]
fn threads_are_sandboxed_during_precopy() {
    let names = &["src-control", "src-precopy-", "dst-control", "dst-back-"];
    moved_by(names, Mode::Precopy);
}

#[test]
fn threads_are_sandboxed_during_postcopy() {
    let names = &[
        "src-control",
        "src-urgent",
        "src-push-",
        "dst-control",
        "dst-urgent",
        "dst-back-",
    ];
    moved_by(names, Mode::Postcopy);
}

fn at(path: &Path) -> Address {
    format!("unix:{}", path.display()).parse().unwrap()
}

/// A source connects to a destination that sends nothing.
#[test]
fn the_handshake_thread_of_a_source_is_sandboxed() {
    let _watchdog = watchdog();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("silent");
    let silent = UnixListener::bind(&path).unwrap();
    let remote = Remote::from(at(&path));
    let seen = thread::scope(|scope| {
        let id = MigrationId::from_bytes([1; 16]);
        let greeting = scope.spawn(move || open(&remote, &hello(Role::Control, id)));
        let accepted = silent.accept().unwrap();
        let seen = wait_until_sandboxed(&["src-hello"]);
        drop(accepted);
        greeting.join().unwrap().unwrap_err();
        seen
    });
    assert_eq!(seen, Ok(()));
}

/// A client connects to a destination and sends nothing.
#[test]
fn the_handshake_threads_of_a_destination_are_sandboxed() {
    let _watchdog = watchdog();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("listen");
    let listener = Listener::bind(&at(&path)).unwrap();
    let (sender, _incoming) = sync_channel(1);
    let stop = CancelFlag::new();
    let seen = thread::scope(|scope| {
        scope.spawn(|| listener.serve(&sender, &stop));
        let stranger = UnixStream::connect(&path);
        let seen = wait_until_sandboxed(&["dst-hello"]);
        stop.cancel();
        drop(stranger);
        seen
    });
    assert_eq!(seen, Ok(()));
}
