//! For how long `hikkoshi receive` waits for a source.

use std::io::{self, Stdout};
use std::time::{Duration, Instant};

use hikkoshi_link::{WaitEnded, WaitLimit};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::FileType;

/// Until `wait_for` has passed, if it is given. Where an `invitation` was printed, also
/// only as long as somebody can read it: the other program of a pipeline, which would
/// have come with it, may have failed.
pub fn waiting(wait_for: Option<Duration>, invitation: bool) -> WaitLimit {
    let begun = Instant::now();
    let stdout = io::stdout();
    let reader = invitation && is_piped(&stdout);
    WaitLimit::until(move || match wait_for {
        Some(limit) if begun.elapsed() >= limit => Some(WaitEnded::Late(limit)),
        _ if reader && is_unread(&stdout) => Some(WaitEnded::NobodyInvited),
        _ => None,
    })
}

/// Whether there is another program behind it, which can go. Files stay, and a terminal's
/// person may have read the invitation before closing it.
fn is_piped(stdout: &Stdout) -> bool {
    rustix::fs::fstat(stdout).is_ok_and(|stat| {
        let kind = FileType::from_raw_mode(stat.st_mode);
        matches!(kind, FileType::Fifo | FileType::Socket)
    })
}

/// Whether nobody can read what is written there: poll(2), `POLLERR` for the writing end
/// of a pipe, `POLLHUP` for a socket.
fn is_unread(stdout: &Stdout) -> bool {
    let mut poll = [PollFd::new(stdout, PollFlags::empty())];
    let at_once = Timespec::default();
    rustix::event::poll(&mut poll, Some(&at_once)).is_ok()
        && poll[0]
            .revents()
            .intersects(PollFlags::ERR | PollFlags::HUP)
}
