//! What `hikkoshi invite` and `hikkoshi receive --daemon` say to each other: one line of JSON in
//! each direction, on a unix socket in the run folder.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// The longest line, in bytes.
const MAX_LINE: u64 = 64 << 10;

/// A guest to receive.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Request {
    /// Its name; `None`: the daemon makes one.
    pub name: Option<String>,
    /// What receives it.
    pub machine: Machine,
    /// How long the invitation is valid, in seconds.
    pub wait_seconds: u64,
    /// Other options of `receive`.
    pub options: Vec<String>,
}

/// What receives a guest.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Machine {
    /// A QEMU that is started from this template.
    Template(PathBuf),
    /// A domain of this libvirt daemon.
    Connect(String),
    /// The QEMU with this socket.
    Qmp(PathBuf),
}

/// The answer.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Reply {
    /// The invitation, and the guest's name.
    Invited { name: String, invitation: String },
    /// Why there is none.
    Refused(String),
}

/// The daemon's socket in the run folder.
pub(crate) fn socket(folder: &Path) -> PathBuf {
    folder.join("receive.sock")
}

/// Writes a line.
pub(crate) fn write(stream: &UnixStream, value: &impl Serialize) -> io::Result<()> {
    let mut text = serde_json::to_vec(value).map_err(io::Error::other)?;
    text.push(b'\n');
    (&*stream).write_all(&text)
}

/// Reads a line.
pub(crate) fn read<T: DeserializeOwned>(stream: &UnixStream) -> io::Result<T> {
    let mut line = Vec::new();
    BufReader::new(stream)
        .take(MAX_LINE)
        .read_until(b'\n', &mut line)?;
    if line.last() != Some(&b'\n') {
        return Err(io::Error::new(
            io::ErrorKind::UnexpectedEof,
            "the line is incomplete, or too long",
        ));
    }
    serde_json::from_slice(&line).map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_one_line() {
        let (one, other) = UnixStream::pair().unwrap();
        let request = Request {
            name: Some("a".into()),
            machine: Machine::Template("/t\n".into()),
            wait_seconds: 3,
            options: vec!["--x".into()],
        };
        write(&one, &request).unwrap();
        assert_eq!(read::<Request>(&other).unwrap(), request);
    }

    #[test]
    fn other_text_is_an_error() {
        for text in ["", "{}\n", "{\"name\":null}", "x\n", "\n"] {
            let (one, other) = UnixStream::pair().unwrap();
            (&one).write_all(text.as_bytes()).unwrap();
            drop(one);
            assert!(read::<Request>(&other).is_err(), "{text:?}");
        }
        let (one, other) = UnixStream::pair().unwrap();
        let writer = std::thread::spawn(move || (&one).write_all(&vec![b' '; 1 << 20]));
        assert!(read::<Request>(&other).is_err());
        drop(other);
        assert!(writer.join().unwrap().is_err());
    }
}
