//! The other process that writes to the guest's memory for a device: a vhost-user backend such as
//! virtiofsd. It is at the other end of the socket of the device's chardev.

use std::fs;
use std::io::Read;
use std::os::unix::net::UnixStream;

use hikkoshi_linux::Process;
use rustix::net::sockopt::socket_peercred;
use serde_json::{Map, Value};

use crate::process;
use crate::process::options::{keys, started_options};
use crate::qmp::{Client, qom};

/// ` (process 4711, virtiofsd)`, or nothing if it is not found. `object` has the chardev as a
/// property.
pub(super) fn of_object(client: &mut Client, object: &str) -> String {
    let chardev = qom::property(client, object, "chardev");
    let chardev = chardev.ok().flatten();
    let found = chardev.and_then(|chardev| of_chardev(client.peer()?, chardev.as_str()?));
    found.unwrap_or_default()
}

/// The process behind a network backend, for a message; nothing if it is not found. `info`: what
/// `info network` says of it, which is where a backend without a chardev (`passt`) names it.
pub(super) fn of_network(client: &Client, name: &str, info: &str) -> String {
    if let Some((_, pid)) = info.split_once("connected to pid ")
        && let Ok(pid) = pid.trim().parse()
    {
        return named(pid);
    }
    let found = client.peer().and_then(|pid| {
        let chardev = option(pid, "netdev", "type", name)?;
        of_chardev(pid, chardev.get("chardev")?.as_str()?)
    });
    found.unwrap_or_default()
}

pub(super) fn of_chardev(qemu: u32, chardev: &str) -> Option<String> {
    let path = option(qemu, "chardev", "backend", chardev)?;
    let qemu = Process::open(qemu).ok()?;
    Some(named(at_socket(&qemu, path.get("path")?.as_str()?)?))
}

fn named(pid: u32) -> String {
    let name = Process::open(pid).map_or_else(|_| "?".to_owned(), |found| process::name(&found));
    format!(" (process {pid}, {name})")
}

/// The option with this id on QEMU's command line.
fn option(qemu: u32, option: &str, first: &str, id: &str) -> Option<Map<String, Value>> {
    let options = started_options(&Process::open(qemu).ok()?).ok()?;
    let values = options.iter().filter(|(name, _)| name == option);
    let mut values = values.filter_map(|(_, value)| keys(value, first));
    values.find(|keys| keys.get("id").and_then(Value::as_str) == Some(id))
}

/// The process that is connected with QEMU by the socket at `path`.
fn at_socket(qemu: &Process, path: &str) -> Option<u32> {
    let mut table = String::new();
    let opened = qemu.open_proc("net/unix");
    opened.ok()?.read_to_string(&mut table).ok()?;
    let links: Vec<_> = connected(&table, path).collect();
    // It has connected to QEMU.
    for number in qemu.descriptors().ok()? {
        // It may have been closed meanwhile.
        let Ok((link, _)) = qemu.describe_descriptor(number) else {
            continue;
        };
        if links
            .iter()
            .any(|connected| link.as_os_str() == &**connected)
        {
            let socket = UnixStream::from(qemu.descriptor(number).ok()?);
            let peer = socket_peercred(&socket).ok()?;
            return u32::try_from(peer.pid.as_raw_nonzero().get()).ok();
        }
    }
    // QEMU has connected to it. (The peer that the kernel names is the one that has begun to
    // listen: for virtiofsd that is libvirt.)
    let entries = fs::read_dir("/proc").ok()?;
    let processes = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    processes.into_iter().find(|pid: &u32| {
        let descriptors = fs::read_dir(format!("/proc/{pid}/fd"));
        let mut descriptors = descriptors.into_iter().flatten().flatten();
        descriptors.any(|entry| {
            let link = fs::read_link(entry.path());
            link.is_ok_and(|link| links.iter().any(|is| link.as_os_str() == &**is))
        })
    })
}

/// The links in `/proc/PID/fd` of the connected sockets that were made by accepting connections at
/// `path` (proc_net_unix(5)).
fn connected<'a>(table: &'a str, path: &'a str) -> impl Iterator<Item = String> + 'a {
    const CONNECTED: &str = "03";
    table.lines().filter_map(move |line| {
        let mut words = line.split_ascii_whitespace();
        let (state, inode) = (words.nth(5)?, words.next()?);
        let (_, at) = line.split_once(&format!(" {inode} "))?;
        (state == CONNECTED && at == path).then(|| format!("socket:[{inode}]"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;
    use std::process::{Command, Stdio};

    const PATH: &str = "HIKKOSHI_TEST_CONNECT";
    const CONNECTS: &str = "attach::preflight::other_process::tests::another_process";

    /// The other process: a copy of this program that connects to a socket, and waits for the end
    /// of its standard input.
    #[test]
    fn another_process() {
        let Some(path) = std::env::var_os(PATH) else {
            return;
        };
        let socket = UnixStream::connect(path).unwrap();
        std::io::copy(&mut std::io::stdin(), &mut std::io::sink()).unwrap();
        drop(socket);
    }

    #[test]
    fn sockets_with_a_connection_are_found_by_their_path() {
        let table = "Num       RefCount Protocol Flags    Type St Inode Path\n\
            0000000000000000: 00000002 00000000 00010000 0001 01 11 /run/a b\n\
            0000000000000000: 00000003 00000000 00000000 0001 03 12 /run/a b\n\
            0000000000000000: 00000003 00000000 00000000 0001 03 13\n\
            0000000000000000: 00000003 00000000 00000000 0001 03  1234 /run/c\n";
        let of = |path| connected(table, path).collect::<Vec<_>>();
        assert_eq!(of("/run/a b"), ["socket:[12]"]);
        assert_eq!(of("/run/c"), ["socket:[1234]"]);
        assert!(of("/run").is_empty());
    }

    #[test]
    fn the_process_at_the_other_end_is_found_from_both_ends() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let listener = UnixListener::bind(&path).unwrap();
        let own = Process::open(std::process::id()).unwrap();
        let path = path.to_str().unwrap();
        assert_eq!(at_socket(&own, path), None);
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", CONNECTS])
            .env(PATH, path)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let (accepted, _) = listener.accept().unwrap();
        // This process listens, as a QEMU with `server=on`.
        assert_eq!(at_socket(&own, path), Some(child.id()));
        // The child has connected, as a QEMU without it.
        let other = Process::open(child.id()).unwrap();
        assert_eq!(at_socket(&other, path), Some(std::process::id()));
        drop(accepted);
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
