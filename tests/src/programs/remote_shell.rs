//! A program in the place of ssh, for `migrate --rsh`.

use crate::environment::executable::write_script;
use rustix::process::{Pid, Signal, kill_process_group};
use std::fs;
use std::path::{Path, PathBuf};

/// Runs a command line as sshd does: by a shell, on another host, in a session of its own, and with
/// pipes that end with the connection. The shell prints something before.
const SCRIPT: &str = r#"#!/bin/bash
echo $$ >"$FOLDER/session"
printf '%s %s\n' "$1" "$2" >>"$FOLDER/commands"
echo welcome
setsid ENTER sh -c "$2" < <(cat 2>/dev/null) > >(cat) 2> >(cat >&2)
"#;

/// A remote shell to one host, and what it was called with.
#[derive(Debug)]
pub struct RemoteShell {
    folder: PathBuf,
}

impl RemoteShell {
    /// A shell whose commands are run by `enter`, the words of a command that enters the host; its
    /// files are in `folder`.
    ///
    /// # Panics
    /// When a file cannot be written.
    pub fn new(folder: &Path, enter: &[&str]) -> Self {
        let folder = folder.join("remote shell");
        fs::create_dir_all(&folder).unwrap();
        let script = SCRIPT
            .replace("ENTER", &enter.join(" "))
            .replace("$FOLDER", folder.to_str().unwrap());
        let program = folder.join("rsh");
        write_script(&program, &script);
        Self { folder }
    }

    /// For `--rsh`. The program leads a process group.
    pub fn command(&self) -> String {
        format!("setsid '{}'", self.folder.join("rsh").display())
    }

    /// The hosts and command lines that it was called with, a line each.
    ///
    /// # Panics
    /// When it was not called.
    pub fn commands(&self) -> String {
        fs::read_to_string(self.folder.join("commands")).unwrap()
    }

    /// Ends the last connection by killing its processes on this side. The command on the other
    /// host continues, and its pipes are broken.
    ///
    /// # Panics
    /// When there is none.
    pub fn kill_session(&self) {
        let session = fs::read_to_string(self.folder.join("session")).unwrap();
        let session = Pid::from_raw(session.trim().parse().unwrap()).unwrap();
        kill_process_group(session, Signal::KILL).unwrap();
    }
}
