//! What `hikkoshi invite` and `hikkoshi daemon` say to each other: one line of JSON in
//! each direction, on a unix socket in the run folder.

use std::ffi::OsString;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use error_reporter::Report;
use hikkoshi_link::Address;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::args::Invite;
use crate::journal::absolute;

/// The longest line, in bytes.
const MAX_LINE: u64 = 64 << 10;

/// The version of what is asked. A daemon refuses others: it runs on after an upgrade.
const VERSION: u64 = 1;

/// What is asked.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Question {
    /// An invitation for a guest.
    Invite(Request),
    /// To end the receiver of the guest with this name, whose source has not come.
    Withdraw(String),
}

/// A guest to receive.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Request {
    /// Its name; `None`: the daemon makes one.
    pub name: Option<String>,
    /// What receives it.
    pub destination: Destination,
    /// How long the invitation is valid, in seconds.
    pub wait_seconds: u64,
    /// Other options of `receive`.
    pub options: Vec<String>,
}

/// What receives a guest.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Destination {
    /// A QEMU that is started from this template.
    Template(PathBuf),
    /// A domain of this libvirt daemon.
    Connect(String),
    /// The QEMU with this socket.
    Qmp(PathBuf),
}

impl Request {
    /// What these options ask for; `None`: nothing that receives a guest. The invitation is valid
    /// for `wait`, unless an option says otherwise.
    pub(crate) fn from_options(options: &Invite, wait: Duration) -> Option<Self> {
        let destination = match (&options.template, &options.connect, &options.qmp) {
            (Some(template), ..) => Destination::Template(absolute(template)),
            (None, Some(uri), _) => Destination::Connect(uri.clone()),
            (None, None, Some(qmp)) => Destination::Qmp(absolute(qmp)),
            (None, None, None) => return None,
        };
        Some(Self {
            name: options.name.clone(),
            destination,
            wait_seconds: options.wait_for.unwrap_or(wait).as_secs(),
            options: options.options.clone(),
        })
    }

    /// What the `receiver` for it is given, besides what each is given.
    pub(super) fn receiver_arguments(
        &self,
        listen: &Address,
        advertised: &Address,
    ) -> Vec<OsString> {
        let mut words: Vec<OsString> = Vec::new();
        words.extend(["--wait-for".into(), self.wait_seconds.to_string().into()]);
        words.extend(["--listen".into(), listen.to_string().into()]);
        words.extend(["--advertise".into(), advertised.to_string().into()]);
        match &self.destination {
            Destination::Template(file) => words.extend(["--template".into(), file.into()]),
            Destination::Connect(uri) => words.push(format!("--connect={uri}").into()),
            Destination::Qmp(path) => words.extend(["--qmp".into(), path.into()]),
        }
        words.extend(self.options.iter().map(Into::into));
        words
    }
}

/// The answer.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Reply {
    /// The invitation, and the guest's name.
    Invited { name: String, invitation: String },
    /// The invitation was withdrawn.
    Withdrawn,
    /// Nothing was done.
    Refused(Refusal),
}

/// Why a daemon has refused.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Refusal {
    pub kind: RefusalKind,
    /// For people.
    pub why: String,
}

/// What a program may have to tell apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum RefusalKind {
    /// A guest of this name is received or awaited.
    NameTaken,
    /// As many guests as are allowed are received or awaited: it may be tried again later.
    Full,
    /// Something else.
    Other,
}

impl Refusal {
    pub(super) fn new(kind: RefusalKind, why: String) -> Self {
        Self { kind, why }
    }

    /// The reason for the source of the guest `name`, on another host: short, without paths of this
    /// host, and without what a QEMU has written, which is in the daemon's log.
    pub(super) fn for_source(&self, name: &str) -> String {
        match self.kind {
            RefusalKind::NameTaken => format!(
                "a guest with the name {name} is invited or received already, or its migration is \
                 not finished"
            ),
            RefusalKind::Full => self.why.clone(),
            RefusalKind::Other => {
                "what receives the guest could not be started (the destination's log says why)"
                    .to_owned()
            }
        }
    }
}

impl From<String> for Refusal {
    fn from(why: String) -> Self {
        Self::new(RefusalKind::Other, why)
    }
}

/// The daemon's socket in the run folder.
pub(crate) fn socket(folder: &Path) -> PathBuf {
    folder.join("daemon.sock")
}

/// Asks a daemon.
pub(crate) fn ask(stream: &UnixStream, question: &Question) -> io::Result<()> {
    let mut asked = serde_json::to_value(question).map_err(io::Error::other)?;
    asked["version"] = VERSION.into();
    write(stream, &asked)
}

/// Reads what is asked.
///
/// # Errors
/// What to answer.
pub(super) fn read_question(stream: &UnixStream) -> Result<Question, String> {
    let text = |error: &dyn std::error::Error| Report::new(error).to_string();
    let mut asked: serde_json::Value = read(stream).map_err(|error| text(&error))?;
    let version = asked.as_object_mut().and_then(|all| all.remove("version"));
    match version {
        Some(version) if version == VERSION => {
            serde_json::from_value(asked).map_err(|error| text(&error))
        }
        _ => Err(format!(
            "the daemon and this command are of different versions: restart the daemon, whose \
             migrations continue (it understands version {VERSION} of its requests)"
        )),
    }
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
            destination: Destination::Template("/t\n".into()),
            wait_seconds: 3,
            options: vec!["--x".into()],
        };
        let question = Question::Invite(request);
        ask(&one, &question).unwrap();
        assert_eq!(read_question(&other).unwrap(), question);
        let question = Question::Withdraw("a".to_owned());
        ask(&one, &question).unwrap();
        assert_eq!(read_question(&other).unwrap(), question);
    }

    #[test]
    fn a_source_is_sent_a_short_reason() {
        let why = "starting qemu: it has ended (1): -chardev socket,path=/srv/secret: denied";
        let refusal = |kind| Refusal::new(kind, why.to_owned()).for_source("web");
        for kind in [RefusalKind::NameTaken, RefusalKind::Other] {
            let sent = refusal(kind);
            assert!(!sent.contains("/srv") && sent.len() < 200, "{sent}");
        }
        let part = "the name web is invited or received already";
        assert!(refusal(RefusalKind::NameTaken).contains(part));
    }

    #[test]
    fn another_version_is_refused_with_the_reason() {
        for asked in [
            "{\"version\":2,\"withdraw\":\"a\"}\n",
            "{\"name\":null}\n",
            "[]\n",
        ] {
            let (one, other) = UnixStream::pair().unwrap();
            (&one).write_all(asked.as_bytes()).unwrap();
            let why = read_question(&other).unwrap_err();
            assert!(why.contains("different versions"), "{asked}: {why}");
        }
        let (one, other) = UnixStream::pair().unwrap();
        (&one).write_all(b"{\"version\":1,\"other\":1}\n").unwrap();
        assert!(read_question(&other).unwrap_err().contains("other"));
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
