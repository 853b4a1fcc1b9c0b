//! The session in which this process was started, by ssh or by a daemon: how to become independent
//! of it, and how its end is noticed.

use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::{FileType, OFlags};

/// How long a process that ssh has started waits for its source, unless `--wait-for` says
/// otherwise: the source connects when it has the invitation. If its host is lost, the end of the
/// session may be noticed much later.
pub(super) const WAIT: Duration = Duration::from_secs(60);

/// Makes the process independent of the session's terminal and of who reads its messages. Also for
/// a receiver of a daemon.
pub(super) fn detach() {
    // It leads a session already if sshd has started it directly.
    let _ = rustix::process::setsid();
    let stderr = io::stderr();
    // A reader that does not read any more must not block the engine. A terminal is left as it is:
    // other processes use it.
    if is_pipe(&stderr)
        && let Ok(flags) = rustix::fs::fcntl_getfl(&stderr)
    {
        let _ = rustix::fs::fcntl_setfl(&stderr, flags | OFlags::NONBLOCK);
    }
}

/// Whether the other end of the session has closed standard input.
pub(super) fn has_ended() -> bool {
    let stdin = io::stdin();
    // A file or /dev/null says nothing about the session.
    is_pipe(&stdin) && is_at_end(&stdin)
}

fn is_at_end(input: impl AsFd) -> bool {
    let mut poll = [PollFd::new(&input, PollFlags::IN)];
    let at_once = Timespec::default();
    if !matches!(rustix::event::poll(&mut poll, Some(&at_once)), Ok(1..)) {
        return false;
    }
    // Nothing is sent. If it is, it is ignored.
    matches!(rustix::io::read(&input, &mut [0; 512]), Ok(0))
}

/// Whether it is a pipe or a socket.
pub(super) fn is_pipe(file: impl AsFd) -> bool {
    rustix::fs::fstat(file).is_ok_and(|stat| {
        let kind = FileType::from_raw_mode(stat.st_mode);
        matches!(kind, FileType::Fifo | FileType::Socket)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn only_the_end_of_a_pipe_ends_the_session() {
        let (reader, mut writer) = io::pipe().unwrap();
        assert!(is_pipe(&reader) && !is_at_end(&reader));
        writer.write_all(b"ignored").unwrap();
        assert!(!is_at_end(&reader) && !is_at_end(&reader));
        drop(writer);
        assert!(is_at_end(&reader));
        assert!(!is_pipe(std::fs::File::open("/dev/null").unwrap()));
    }
}
