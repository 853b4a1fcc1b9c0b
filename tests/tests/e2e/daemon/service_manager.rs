//! A daemon with the socket of a service manager, and what `invite` reports. Without guests.
#![allow(clippy::unwrap_used)] // a test's failure is the message

use super::Daemon;
use hikkoshi_tests::{Program, assert_command_refused, hikkoshi, unique_address};
use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::Command;

/// The socket of a service manager, and what `invite` reports. Without guests.
#[test]
fn a_daemon_takes_the_socket_of_a_service_manager() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run");
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let mut command = Command::new("sh");
    let words = "exec 3<&0 0</dev/null; LISTEN_PID=$$ LISTEN_FDS=1 exec \"$@\"";
    command.args(["-c", words, "sh"]).arg(hikkoshi());
    command.args(["daemon", "--journal"]).arg(&run);
    let mut program = start_with_socket(command, listener);
    program.wait_stderr(&format!("receiving guests at {address}"));
    let daemon = |arguments: &[&str]| {
        let mut command = Command::new(hikkoshi());
        command
            .arg("invite")
            .args(arguments)
            .arg("--journal")
            .arg(&run);
        command
    };
    let template = folder.path().join("template");
    fs::write(&template, "sh -c 'echo no such machine >&2; exit 1'").unwrap();
    let template = template.to_str().unwrap();
    for (arguments, part) in [
        (["--qmp", "/nowhere/qmp"], "/nowhere/qmp"),
        (["--template", "/nowhere/template"], "/nowhere/template"),
        (["--template", template], "no such machine"),
    ] {
        assert_command_refused(daemon(&arguments), 1, &[part]);
    }
    let nobody = "no guest with the name nobody is awaited";
    assert_command_refused(daemon(&["--withdraw", "nobody"]), 1, &[nobody]);
    // An `invite` of an earlier revision.
    let mut old = UnixStream::connect(run.join("daemon.sock")).unwrap();
    old.write_all(b"{\"name\":null}\n").unwrap();
    let mut answer = String::new();
    old.read_to_string(&mut answer).unwrap();
    assert!(answer.contains("different versions"), "{answer}");
    let options = ["--qmp", "/q", "--receive-option=--no-such-option"];
    assert_command_refused(daemon(&options), 1, &[]);
    // A peer that is not hikkoshi.
    let mut other = TcpStream::connect(address).unwrap();
    other.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    assert!(matches!(other.read(&mut [0]), Ok(0) | Err(_)));
    program.wait_stderr("the peer does not use TLS");
    // A second daemon in the same folder.
    let mut second = Command::new(hikkoshi());
    second.args(["daemon", "--listen", "127.0.0.1:0", "--journal"]);
    second.arg(&run);
    assert_command_refused(second, 2, &["another 'hikkoshi daemon'"]);
    program.interrupt();
    program.wait().assert(0, &[]);
    assert_command_refused(daemon(&["--qmp", "/q"]), 2, &["'hikkoshi daemon'"]);
    let full = ["--max-guests", "0"];
    let full = Daemon::start_by(Command::new(hikkoshi()), &run, &unique_address(), &full);
    let part = "0 guests are received or awaited, as many as --max-guests allows";
    assert_command_refused(full.invite(&["--qmp", "/q"]), 1, &[part]);
}

/// Starts a program that has the listener as its standard input.
fn start_with_socket(mut command: Command, listener: TcpListener) -> Program {
    command.stdin(OwnedFd::from(listener));
    Program::start_as_it_is("daemon", command)
}
