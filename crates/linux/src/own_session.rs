//! Programs that outlive the one that starts them.

use std::os::unix::process::CommandExt;
use std::process::Command;

/// Makes the program start in a session of its own (setsid(2)), and so in a process group of its
/// own: the terminal's signals are not for it.
///
/// A process group alone is not enough for a program that outlives its parent. If one of its
/// processes is stopped when the parent exits, the kernel sends `SIGHUP` to all of them, because
/// nobody in the session can continue them any more (setpgid(2), "orphaned"). A stopped QEMU would
/// end with its guest.
pub fn in_own_session(command: &mut Command) -> &mut Command {
    let new_session = || Ok(rustix::process::setsid().map(drop)?);
    // SAFETY: what runs between `fork` and `execve` is one system call, which is async-signal-safe
    // (signal-safety(7)). It allocates nothing: an error is a number.
    unsafe { command.pre_exec(new_session) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_leads_its_session() {
        // Fields 5 and 6: its process group and its session (proc_pid_stat(5)).
        let script = "read -r line </proc/self/stat; set -- $line; test $5 = $$ && test $6 = $$";
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        assert!(!command.status().unwrap().success());
        assert!(in_own_session(&mut command).status().unwrap().success());
    }
}
