//! Standard error, written by a thread of its own.
//!
//! A write to a terminal whose output is stopped (Ctrl-S), or to a pipe that no process reads, does
//! not return. If a thread of the engine waited for that, a guest would wait for its pages. So the
//! threads of this program only queue what they report ([`Queue`]), and one thread writes it
//! ([`Writer`]). If that thread does not get on, lines are dropped, and it writes how many. The end
//! of the program waits for it, but not for long.
//!
//! Before [`start`], and if the thread cannot be started, lines are written at once.

mod queue;
mod writer;

use std::io::{self, IsTerminal};
use std::sync::OnceLock;
use std::thread;
use std::time::Duration;

use error_reporter::Report;

use queue::Queue;
pub(crate) use queue::{ProgressBar, ProgressItem};
use writer::{Writer, write_all};

use crate::output::line_format::notice_line;

/// How long the end of the program waits until everything is written. Longer than a busy host
/// needs, and no more: the program that waits for the exit status may be the one that does not
/// read.
const AT_END: Duration = Duration::from_secs(5);

/// How long standard output waits for what was reported before.
const BEFORE_STDOUT: Duration = Duration::from_secs(1);

/// The queue of this process, once its thread runs.
static QUEUE: OnceLock<&'static Queue> = OnceLock::new();

/// The thread that writes. Dropped at the end of the program: waits a moment until everything is
/// written.
#[derive(Debug)]
pub(crate) struct WriterThread(());

impl Drop for WriterThread {
    fn drop(&mut self) {
        flush(AT_END);
    }
}

/// Starts the thread. Called once, before other threads exist.
pub(crate) fn start() -> WriterThread {
    // Threads may use it until the process ends.
    let queue: &'static Queue = Box::leak(Box::<Queue>::default());
    let thread = thread::Builder::new().name("stderr".into());
    match thread.spawn(move || write(queue)) {
        Ok(_) => {
            let _ = QUEUE.set(queue);
        }
        Err(error) => line(notice_line(&format!(
            "starting the thread that writes to standard error: {}; a terminal that is stopped \
             will stop this program",
            Report::new(&error)
        ))),
    }
    WriterThread(())
}

/// The thread: writes what is queued.
fn write(queue: &Queue) {
    let mut writer = Writer::new(io::stderr(), columns);
    loop {
        writer.write(queue.take());
    }
}

/// Whether progress can be drawn on it.
pub(crate) fn is_terminal() -> bool {
    let is_dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
    io::stderr().is_terminal() && !is_dumb
}

/// Columns of the terminal; 80 if they are not known.
fn columns() -> usize {
    let size = rustix::termios::tcgetwinsize(io::stderr());
    let columns = size.ok().map(|size| usize::from(size.ws_col));
    columns.filter(|&columns| columns > 0).unwrap_or(80)
}

/// Writes a line. It may be dropped.
pub(super) fn line(line: String) {
    match QUEUE.get() {
        Some(queue) => queue.line(line),
        None => at_once(&line),
    }
}

/// Writes one of the few lines that are not dropped.
pub(super) fn important_line(line: String) {
    match QUEUE.get() {
        Some(queue) => queue.important_line(line),
        None => at_once(&line),
    }
}

/// Shows progress. It replaces what was not written yet.
pub(crate) fn progress(item: ProgressItem) {
    if let Some(queue) = QUEUE.get() {
        queue.progress(item);
    }
}

/// No progress is shown any more. What is drawn is removed before this returns, unless nothing can
/// be written.
pub(crate) fn end_progress() {
    if let Some(queue) = QUEUE.get() {
        queue.end_progress();
        queue.flush(BEFORE_STDOUT);
    }
}

/// Waits a moment until everything is written, so that what follows on standard output comes after
/// it.
pub(crate) fn before_stdout() {
    flush(BEFORE_STDOUT);
}

/// Waits until everything is written, at most as long as the end of the program does.
pub(crate) fn at_end() {
    flush(AT_END);
}

fn flush(limit: Duration) {
    if let Some(queue) = QUEUE.get() {
        queue.flush(limit);
    }
}

fn at_once(line: &str) {
    // With one call: several threads and the guard process write there.
    write_all(&mut io::stderr(), format!("{line}\n").as_bytes());
}
