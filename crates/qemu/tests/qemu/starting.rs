//! QEMUs that are being started, slowly.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use hikkoshi_qemu::qmp::{Client, ConnectError, wait_until_started};
use serde_json::json;

use crate::support::{eventually, with_each};

/// Delays QEMU's threads as a busy host can: the monitor thread runs seconds after it was asked to
/// take the socket over, and the main thread accepts a connection still later than it was told
/// that there is one. (The first waits for a processor, so it must not sleep.)
const DELAYS: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static int is_main(void) { return syscall(SYS_gettid) == getpid(); }

static void delay_once(int *done) {
    struct timespec begin, now;
    if (is_main() || (*done)++) return;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    do clock_gettime(CLOCK_MONOTONIC, &now); while (now.tv_sec - begin.tv_sec < 2);
}

int ppoll(struct pollfd *fds, nfds_t n, const struct timespec *time, const sigset_t *signals) {
    static int done;
    int (*next)(struct pollfd *, nfds_t, const struct timespec *, const sigset_t *) =
        dlsym(RTLD_NEXT, "ppoll");
    int ready = next(fds, n, time, signals);
    delay_once(&done);
    return ready;
}

int poll(struct pollfd *fds, nfds_t n, int time) {
    static int done;
    int (*next)(struct pollfd *, nfds_t, int) = dlsym(RTLD_NEXT, "poll");
    int ready = next(fds, n, time);
    delay_once(&done);
    return ready;
}

int accept4(int fd, struct sockaddr *address, socklen_t *length, int flags) {
    int (*next)(int, struct sockaddr *, socklen_t *, int) = dlsym(RTLD_NEXT, "accept4");
    if (is_main()) sleep(4);
    return next(fd, address, length, flags);
}
"#;

/// Compiles a library for `LD_PRELOAD`.
fn compiled(folder: &Path) -> PathBuf {
    let [source, library] = ["delays.c", "delays.so"].map(|name| folder.join(name));
    fs::write(&source, DELAYS).unwrap();
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-fPIC", "-o"]).arg(&library);
    let compiled = compiler.arg(&source).arg("-ldl").status().unwrap();
    assert!(compiled.success(), "cc: {compiled}");
    library
}

/// Ends with the test.
struct Starting(Child);

impl Drop for Starting {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_qemu_gets_no_connection_while_it_is_starting() {
    let folder = tempfile::tempdir().unwrap();
    let library = compiled(folder.path());
    with_each(|program| {
        let socket = folder.path().join(&program.label);
        let mut command = Command::new(&program.run);
        command
            .env("LD_PRELOAD", &library)
            .args(["-machine", "none", "-nodefaults", "-display", "none", "-S"])
            .arg("-qmp")
            .arg(format!("unix:{},server=on,wait=off", socket.display()))
            .stdin(Stdio::null());
        let _qemu = Starting(command.spawn().unwrap());
        let mut opened = None;
        eventually("QEMU to listen", || {
            wait_until_started(&socket);
            opened = match Client::connect(&socket, Duration::from_secs(20)) {
                Err(ConnectError::Connect { .. }) => None,
                opened => Some(opened),
            };
            opened.is_some()
        });
        // Otherwise QEMU greets, and does not answer.
        let mut client = opened.unwrap().unwrap();
        client.execute("query-status", json!({})).unwrap();
    });
}
