//! The daemon's socket for `hikkoshi invite`.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use error_reporter::Report;
use hikkoshi_engine::CancelFlag;
use hikkoshi_linux::{bind_unix, is_served};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use super::places::Places;
use super::receiver_processes::ReceiverProcesses;
use super::request::{self, Question, Refusal, RefusalKind, Reply};
use crate::args::parse_guest_name;

/// Requests at a time.
const MAX_REQUESTS: usize = 16;

/// How long a client may take to write its request or read its answer.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(10);

/// How often to check whether to stop.
const TICK: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 100_000_000,
};

/// How long to wait after the system has refused a connection.
const PAUSE: Duration = Duration::from_millis(100);

/// A listener for clients of the same user.
#[derive(Debug)]
pub(super) struct Control {
    listener: UnixListener,
    path: PathBuf,
    /// The folder of the socket, locked: only the daemon that has the lock makes or removes the
    /// socket. Dropped last.
    _folder: File,
}

impl Control {
    /// Listens at `path`, unless another daemon does.
    pub(super) fn bind(path: &Path) -> io::Result<Self> {
        let in_use = || {
            let what = format!(
                "another 'hikkoshi daemon' uses {} (--journal DIR selects another folder)",
                path.display()
            );
            io::Error::new(io::ErrorKind::AddrInUse, what)
        };
        let folder = File::open(path.parent().unwrap_or(Path::new(".")))?;
        match flock(&folder, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Err(in_use()),
            Err(error) => return Err(error.into()),
        }
        if is_served(path)? {
            // By something that does not have the lock: what it does is not known.
            return Err(in_use());
        }
        if path.exists() {
            // A daemon that was killed has left it.
            std::fs::remove_file(path)?;
        }
        // The run folder can be entered by this user only.
        let listener = bind_unix(path)?;
        listener.set_nonblocking(true)?;
        Ok(Self {
            listener,
            path: path.to_owned(),
            _folder: folder,
        })
    }

    /// Answers requests until `stop` is set.
    pub(super) fn serve(&self, children: &ReceiverProcesses, stop: &CancelFlag) {
        let places = Places::default();
        while !stop.is_cancelled() {
            let mut poll = [PollFd::from_borrowed_fd(
                self.listener.as_fd(),
                PollFlags::IN,
            )];
            let accepted = match rustix::event::poll(&mut poll, Some(&TICK)) {
                Ok(0) | Err(Errno::INTR) => continue,
                Ok(_) => self.listener.accept(),
                Err(error) => Err(error.into()),
            };
            let stream = match accepted {
                Ok((stream, _)) => stream,
                // The client has closed the connection before it was accepted.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
                Err(error) => {
                    // No file descriptors are left. That does not end the daemon.
                    tracing::warn!(error = %Report::new(&error), "accepting 'hikkoshi invite'");
                    thread::sleep(PAUSE);
                    continue;
                }
            };
            let Some(place) = places.take(MAX_REQUESTS) else {
                let why = "too many requests at a time: try again".to_owned();
                let refused = Refusal::new(RefusalKind::Full, why);
                let _ = request::write(&stream, &Reply::Refused(refused));
                continue;
            };
            let children = children.clone();
            let spawned = thread::Builder::new()
                .name("dmn-request".into())
                .spawn(move || {
                    let _place = place;
                    if let Err(error) = answer(&stream, &children) {
                        tracing::warn!(error = %Report::new(&error), "answering 'hikkoshi invite'");
                    }
                });
            if let Err(error) = spawned {
                tracing::warn!(error = %Report::new(&error), "answering 'hikkoshi invite'");
            }
        }
    }
}

fn answer(stream: &UnixStream, children: &ReceiverProcesses) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(CLIENT_TIMEOUT))?;
    stream.set_write_timeout(Some(CLIENT_TIMEOUT))?;
    let user = rustix::net::sockopt::socket_peercred(stream)?.uid;
    let reply = if user == rustix::process::geteuid() || user.is_root() {
        request::read_question(stream)
            .map_err(Refusal::from)
            .and_then(|question| reply(question, children))
    } else {
        Err("run it as the user who runs the daemon".to_owned().into())
    };
    let reply = reply.unwrap_or_else(Reply::Refused);
    let written = request::write(stream, &reply);
    if let (Err(_), Reply::Invited { name, .. }) = (&written, &reply) {
        // No source will have that invitation.
        if let Err(why) = children.withdraw(name) {
            tracing::warn!(why, "withdrawing an invitation that could not be delivered");
        }
    }
    written
}

fn reply(question: Question, children: &ReceiverProcesses) -> Result<Reply, Refusal> {
    match question {
        Question::Invite(request) => {
            request.name.as_deref().map(parse_guest_name).transpose()?;
            let (name, invitation) = children.invite(&request, None)?;
            Ok(Reply::Invited { name, invitation })
        }
        Question::Withdraw(name) => {
            children.withdraw(&parse_guest_name(&name)?)?;
            Ok(Reply::Withdrawn)
        }
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        // It may be removed already.
        let _ = std::fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_daemon_has_the_socket() {
        let run = tempfile::tempdir().unwrap();
        let path = run.path().join("daemon.sock");
        let bound = |result: io::Result<Control>| result.map_err(|error| error.kind());
        let in_use = Some(io::ErrorKind::AddrInUse);
        let first = Control::bind(&path).unwrap();
        // Also if its socket was removed, or does not accept anything.
        std::fs::remove_file(&path).unwrap();
        assert_eq!(bound(Control::bind(&path)).err(), in_use);
        assert!(!path.exists());
        drop(first);
        // A killed one has left its socket.
        drop(UnixListener::bind(&path).unwrap());
        let second = Control::bind(&path).unwrap();
        hikkoshi_linux::connect_unix(&path).unwrap();
        drop(second);
        assert!(!path.exists());
        // One that answers without the lock is not replaced.
        let _other = UnixListener::bind(&path).unwrap();
        assert_eq!(bound(Control::bind(&path)).err(), in_use);
        assert!(is_served(&path).unwrap());
    }
}
