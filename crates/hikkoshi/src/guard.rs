//! The guard: brings the guest back if this program is killed.
//!
//! Between the guest's stop at the source and *commit* there is a moment in
//! which a killed `hikkoshi migrate` would leave the guest stopped for good.
//! So a second process watches: it holds the reading end of a pipe whose
//! writing end only `migrate` has. When the pipe ends without a word, it lets
//! the guest run again and takes back what was taken from QEMU, by the last
//! record of what that was. Before commit is sent it is told so, and from its
//! answer on it will not touch the guest.
//!
//! ```text
//! migrate ◀── "ready" ── guard
//!         ── record ───▶             (what there would be to undo; often)
//!         ── "commit" ─▶             (or the pipe's end: undo)
//!         ◀── "released"
//! ```

use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex};

use hikkoshi_qemu::{QemuSource, UndoRecord};

use crate::args::Guard as Args;
use crate::exit::{Exit, Status};

const READY: &str = "ready";
const COMMIT: &str = "commit";
const RELEASED: &str = "released";

/// The writing end of the guard's pipe; `None` once it was closed.
#[derive(Debug, Clone)]
struct Orders(Arc<Mutex<Option<ChildStdin>>>);

impl Orders {
    /// Gives the guard a line; none once it was released.
    fn give(&self, line: &str) -> io::Result<()> {
        let mut pipe = self.0.lock().map_err(|_| io::ErrorKind::BrokenPipe)?;
        match pipe.as_mut() {
            Some(pipe) => pipe.write_all(format!("{line}\n").as_bytes()),
            None => Ok(()),
        }
    }

    fn close(&self) {
        if let Ok(mut pipe) = self.0.lock() {
            *pipe = None;
        }
    }
}

/// The guard as `migrate` sees it.
#[derive(Debug)]
pub struct Guard {
    child: Child,
    orders: Orders,
    answers: BufReader<ChildStdout>,
}

impl Guard {
    /// Starts a guard that undoes what is done to `guest` when this process
    /// ends.
    pub fn start(qmp: &Path, guest: &mut QemuSource) -> io::Result<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .arg("guard")
            .arg("--qmp")
            .arg(qmp)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // A group of its own: Ctrl-C at the terminal is not for it.
            .process_group(0)
            .spawn()?;
        let (orders, answers) = (child.stdin.take(), child.stdout.take());
        let answers = answers.ok_or(io::ErrorKind::BrokenPipe)?;
        let mut guard = Self {
            child,
            orders: Orders(Arc::new(Mutex::new(orders))),
            answers: BufReader::new(answers),
        };
        guard.expect(READY)?;
        let orders = guard.orders.clone();
        guest.on_undo_record(move |record| {
            // What was written is read even if this process dies right after.
            let told = serde_json::to_string(record)
                .map_err(io::Error::other)
                .and_then(|record| orders.give(&record));
            if let Err(error) = told {
                // Without a guard there will be no commit either.
                tracing::warn!(%error, "the guard process cannot be told what to undo");
            }
        });
        Ok(guard)
    }

    /// From the return of this call on, the guard leaves the guest alone.
    pub fn release(&mut self) -> io::Result<()> {
        self.orders.give(COMMIT)?;
        self.expect(RELEASED)?;
        self.orders.close();
        Ok(())
    }

    fn expect(&mut self, answer: &str) -> io::Result<()> {
        let mut line = String::new();
        self.answers.read_line(&mut line)?;
        if line.trim_end() == answer {
            Ok(())
        } else {
            Err(io::Error::other(format!(
                "the guard process answered '{}' instead of '{answer}'",
                line.trim_end()
            )))
        }
    }
}

impl Drop for Guard {
    /// An orderly end: `migrate` has undone everything itself, or nothing may
    /// be undone.
    fn drop(&mut self) {
        // A guard that is gone needs no order.
        let _ = self.orders.give(COMMIT);
        self.orders.close();
        let _ = self.child.wait();
    }
}

/// The guard itself.
pub fn run(args: &Args) -> Result<Status, Exit> {
    let fail = |doing: &str, error: &dyn std::fmt::Display| {
        Exit::new(Status::Paused, format!("guard: {doing}: {error}"))
    };
    // A parent that does not hear the answer is gone, which the next read
    // tells.
    let _ = writeln!(io::stdout(), "{READY}");
    let mut last = None;
    for order in io::stdin().lines() {
        match order {
            Ok(line) if line == COMMIT => {
                let _ = writeln!(io::stdout(), "{RELEASED}");
                return Ok(Status::Moved);
            }
            Ok(record) => last = Some(record),
            Err(error) => return Err(fail("reading what to undo", &error)),
        }
    }
    let Some(record) = last else {
        return Ok(Status::AtSource); // Nothing was done yet.
    };
    let record: UndoRecord =
        serde_json::from_str(&record).map_err(|error| fail("reading what to undo", &error))?;
    hikkoshi_qemu::undo(&args.qmp, &record).map_err(|error| {
        fail(
            "bringing the guest back after its migration was killed",
            &error,
        )
    })?;
    Ok(Status::AtSource)
}
