//! Starting programs that must not outlive this process.

use crate::LabError;
use std::io;
use std::process::{Child, Command};
use std::sync::OnceLock;
use std::sync::mpsc::{Sender, channel};

type Order = (Command, Sender<io::Result<Child>>);

/// Starts a program that the kernel kills when this process ends, even if it is killed.
///
/// The kernel sends the signal when the *thread* that started the program ends (prctl(2),
/// PR_SET_PDEATHSIG), and a test's thread may end while others still use the machine. Therefore one
/// thread that never ends starts all programs.
pub(crate) fn spawn(mut command: Command) -> Result<Child, LabError> {
    static STARTER: OnceLock<Sender<Order>> = OnceLock::new();
    // SAFETY: runs between fork and exec and makes one system call, no allocation.
    unsafe {
        std::os::unix::process::CommandExt::pre_exec(&mut command, || {
            rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
            Ok(())
        });
    }
    let program = command.get_program().to_string_lossy().into_owned();
    let starter = STARTER.get_or_init(|| {
        let (orders, waiting) = channel::<Order>();
        // Without this thread nothing can be started, and the callers get an error.
        let _ = std::thread::Builder::new()
            .name("starter".to_owned())
            .spawn(move || {
                for (mut command, answer) in waiting {
                    let _ = answer.send(command.spawn());
                }
            });
        orders
    });
    let (answer, started) = channel();
    let lost = || io::Error::other("the thread that starts programs has ended");
    starter
        .send((command, answer))
        .map_err(|_| lost())
        .and_then(|()| started.recv().map_err(|_| lost()))
        .flatten()
        .map_err(|source| LabError::Start { program, source })
}

/// Runs a program and returns its standard output.
pub(crate) fn run(command: &mut Command) -> Result<String, LabError> {
    let described = std::iter::once(command.get_program())
        .chain(command.get_args())
        .map(|word| word.to_string_lossy())
        .collect::<Vec<_>>()
        .join(" ");
    let output = command.output().map_err(|source| LabError::Start {
        program: described.clone(),
        source,
    })?;
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    } else {
        Err(LabError::Command {
            command: described,
            status: output.status.to_string(),
            stderr: String::from_utf8_lossy(&output.stderr).trim().to_owned(),
        })
    }
}
