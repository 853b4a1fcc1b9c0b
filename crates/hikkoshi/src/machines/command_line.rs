//! The command line of a machine, from a template.

use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use hikkoshi_linux::in_own_session;

use super::MachineFiles;
use crate::args::Words;

impl MachineFiles {
    /// The command line, with this machine's names in it, and with the options by which QEMU waits
    /// for the guest.
    ///
    /// # Errors
    /// What is wrong with the template.
    pub(in super::super) fn command_line(&self, template: &str) -> Result<Words, String> {
        let mut words = self.boot_command_line(template)?;
        words
            .arguments
            .extend(["-incoming", "defer"].map(str::to_owned));
        Ok(words)
    }

    /// Starts the program of `words`, with its output in the machine's log. It goes on when this
    /// program has ended.
    pub(in super::super) fn spawn(&self, words: &Words) -> io::Result<Child> {
        // Appended to, so that it can be cut while QEMU writes to it.
        let log = OpenOptions::new()
            .create(true)
            .append(true)
            .mode(0o600)
            .open(&self.log)?;
        log.set_len(0)?;
        let mut command = Command::new(&words.program);
        command
            .args(&words.arguments)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log);
        in_own_session(&mut command).spawn()
    }

    /// The command line by which the guest boots from its disks.
    ///
    /// # Errors
    /// What is wrong with the template.
    pub(super) fn boot_command_line(&self, template: &str) -> Result<Words, String> {
        let mut words = words(template)?;
        // QEMU accepts its options with two dashes as well.
        let has = |option: &str| {
            let mut words = words.arguments.iter();
            words.any(|word| word == option || word.strip_prefix('-') == Some(option))
        };
        if has("-incoming") {
            return Err("leave -incoming out: it is added".to_owned());
        }
        if has("-daemonize") {
            return Err(
                "leave -daemonize out: QEMU could not be ended, and its output not kept, if \
                        it were another process than the one that is started"
                    .to_owned(),
            );
        }
        let has_qmp = words.arguments.iter().any(|word| word.contains("{qmp}"));
        if !has_qmp {
            words.arguments.push("-qmp".to_owned());
            words
                .arguments
                .push("unix:{qmp},server=on,wait=off".to_owned());
        }
        let path = |path: &Path| {
            let text = path.to_str().ok_or("the run folder's path is not UTF-8")?;
            // In the value of an option of QEMU.
            Ok::<_, String>(text.replace(',', ",,"))
        };
        let (qmp, folder) = (path(&self.qmp)?, path(&self.folder)?);
        for word in &mut words.arguments {
            *word = word
                .replace("{name}", &self.name)
                .replace("{qmp}", &qmp)
                .replace("{folder}", &folder);
        }
        Ok(words)
    }
}

/// The program that a template starts.
///
/// # Errors
/// What is wrong with the template.
pub(crate) fn program_of(template: &str) -> Result<String, String> {
    words(template).map(|words| words.program)
}

/// The words of a template.
fn words(template: &str) -> Result<Words, String> {
    let lines = template
        .lines()
        .filter(|line| !line.trim_start().starts_with('#'));
    let lines: Vec<_> = lines
        // As in a command that was copied from a shell.
        .map(|line| line.trim_end().strip_suffix('\\').unwrap_or(line))
        .collect();
    lines.join("\n").parse()
}

#[cfg(test)]
mod tests {
    use super::super::make_folder;
    use super::*;

    #[test]
    fn names_are_put_into_the_command_line() {
        let run = tempfile::tempdir().unwrap();
        let run = run.path().join("a,b");
        make_folder(&run).unwrap();
        let machine = MachineFiles::new(&run, "web1").unwrap();
        let text = "# the web servers\nqemu-system-x86_64 -name {name} \\\n  -m 256\n  \
                    -drive 'file=/disks/{name}.img,if=virtio' -blockdev {\"node-name\":\"x\"}\n";
        let words = machine.command_line(text).unwrap();
        assert_eq!(words.program, "qemu-system-x86_64");
        let qmp = machine.qmp.to_str().unwrap().replace(',', ",,");
        let expected = [
            "-name",
            "web1",
            "-m",
            "256",
            "-drive",
            "file=/disks/web1.img,if=virtio",
            "-blockdev",
            "{node-name:x}",
            "-qmp",
            &format!("unix:{qmp},server=on,wait=off"),
            "-incoming",
            "defer",
        ];
        assert_eq!(words.arguments, expected);
        let own = machine
            .command_line("q -qmp unix:{qmp},server=on,wait=off")
            .unwrap();
        assert_eq!(own.arguments.len(), 4);
        for bad in [
            "",
            "# only a comment",
            "q -incoming defer",
            "q --incoming defer",
            "q -daemonize",
            "q 'x",
        ] {
            assert!(machine.command_line(bad).is_err(), "{bad}");
        }
    }
}
