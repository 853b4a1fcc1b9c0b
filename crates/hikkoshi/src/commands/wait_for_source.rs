//! How long `hikkoshi receive` waits for a source.

use std::io::{self, Stdout};
use std::time::{Duration, Instant};

use hikkoshi_link::{WaitEnded, WaitLimit};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::FileType;

/// Waits until `wait_for` has passed, if it is given. If an `invitation` was printed to a pipe,
/// waits only while another process can read it: if the program that was to pass it on has failed,
/// no source will come.
pub(super) fn wait_for_source(wait_for: Option<Duration>, invitation: bool) -> WaitLimit {
    let begun = Instant::now();
    let stdout = io::stdout();
    let reader = invitation && is_pipe(&stdout);
    WaitLimit::until(move || match wait_for {
        Some(limit) if begun.elapsed() >= limit => Some(WaitEnded::TimedOut(limit)),
        _ if reader && has_no_reader(&stdout) => Some(WaitEnded::InvitationReaderGone),
        _ => None,
    })
}

/// Whether another process reads it. A file keeps the invitation, and a user may have read it on a
/// terminal before closing that.
fn is_pipe(stdout: &Stdout) -> bool {
    rustix::fs::fstat(stdout).is_ok_and(|stat| {
        let kind = FileType::from_raw_mode(stat.st_mode);
        matches!(kind, FileType::Fifo | FileType::Socket)
    })
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
