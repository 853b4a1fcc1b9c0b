//! How long `hikkoshi receive` waits for a source.

use std::io::{self, Stdout};
use std::os::fd::AsFd;
use std::time::Instant;

use hikkoshi_link::{WaitEnded, WaitLimit};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::FileType;

use crate::args::Receive;
use crate::commands::{session, signals};

/// Waits until `wait_for` has passed, if it is given. If an `invitation` was printed to a pipe,
/// waits only while another process can read it: if the program that was to pass it on has failed,
/// no source will come. For a source that has started this by ssh, waits only as long as the
/// session lasts, and not long. If a daemon passes the connection of a source on standard input,
/// waits only until the source closes it.
pub(super) fn wait_for_source(args: &Receive, invitation: bool) -> WaitLimit {
    let in_session = args.is_in_session();
    let wait_for = args
        .guest
        .wait_for
        .or_else(|| in_session.then_some(session::WAIT));
    let begun = Instant::now();
    let stdout = io::stdout();
    // Another process reads it then. A file keeps the invitation, and a user may have read it on a
    // terminal before closing that.
    // A daemon that is restarted does not end the receivers that it has started.
    let reader = invitation && args.name_for_daemon().is_none() && session::is_pipe(&stdout);
    let stdin = io::stdin();
    let asked_for = args.name_for_daemon().is_some() && is_socket(&stdin);
    WaitLimit::until(move || match wait_for {
        Some(limit) if begun.elapsed() >= limit => Some(WaitEnded::TimedOut(limit)),
        _ if in_session && session::has_ended() => Some(WaitEnded::SessionEnded),
        _ if signals::is_withdrawn() => Some(WaitEnded::Withdrawn),
        _ if asked_for && is_closed(&stdin) => Some(WaitEnded::SourceGone),
        _ if reader && has_no_reader(&stdout) => Some(WaitEnded::InvitationReaderGone),
        _ => None,
    })
}

/// Whether it is a socket.
fn is_socket(file: impl AsFd) -> bool {
    rustix::fs::fstat(file)
        .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Socket)
}

/// Whether the other end of the connection has closed it, or does not answer. Nothing is read.
fn is_closed(connection: impl AsFd) -> bool {
    let mut poll = [PollFd::new(&connection, PollFlags::RDHUP)];
    let at_once = Timespec::default();
    matches!(rustix::event::poll(&mut poll, Some(&at_once)), Ok(1..))
}

/// Whether all readers have closed it: poll(2), `POLLERR` for the writing end of a pipe, `POLLHUP`
/// for a socket.
fn has_no_reader(stdout: &Stdout) -> bool {
    let mut poll = [PollFd::new(stdout, PollFlags::empty())];
    let at_once = Timespec::default();
    rustix::event::poll(&mut poll, Some(&at_once)).is_ok()
        && poll[0]
            .revents()
            .intersects(PollFlags::ERR | PollFlags::HUP)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    #[test]
    fn only_the_end_of_a_connection_closes_it() {
        let (connection, mut source) = UnixStream::pair().unwrap();
        assert!(is_socket(&connection) && !is_closed(&connection));
        source.write_all(b"ignored").unwrap();
        assert!(!is_closed(&connection));
        drop(source);
        assert!(is_closed(&connection));
        let (reader, _writer) = io::pipe().unwrap();
        assert!(!is_socket(&reader));
        assert!(!is_socket(std::fs::File::open("/dev/null").unwrap()));
    }
}
