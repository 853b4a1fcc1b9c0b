//! What is run at the destination.

use std::ffi::{OsStr, OsString};
use std::process::Command;

use crate::args::{DEFAULT_GUEST_NAME, Migrate, Words};
use crate::commands::shell_words::{joined, quoted};
use crate::output::exit::{Exit, ExitStatus};
use crate::output::reason::Reason;

/// Where domains are received by default.
const DAEMON: &str = "qemu:///system";

/// Passes on what sshd has set for the shell: `sudo` may remove it. The shell there expands it.
const OWN_CONNECTION: &str = " \"--ssh-connection=$SSH_CONNECTION\"";

/// The command of this host that runs `receive` on `host`.
pub(super) fn command(args: &Migrate, host: &str) -> Result<Command, Exit> {
    let rsh = args.ssh.rsh.clone().unwrap_or_else(|| Words::one("ssh"));
    let mut command = Command::new(&rsh.program);
    command.args(&rsh.arguments).arg(host).arg(line(args)?);
    Ok(command)
}

/// The command line for the shell of the destination.
fn line(args: &Migrate) -> Result<OsString, Exit> {
    let ssh = &args.ssh;
    let hikkoshi = ssh.remote_hikkoshi.clone();
    let hikkoshi = hikkoshi.unwrap_or_else(|| Words::one("hikkoshi"));
    let mut words: Vec<OsString> = vec![hikkoshi.program.into()];
    words.extend(hikkoshi.arguments.into_iter().map(Into::into));
    words.push("ssh-session".into());
    let resumed = args.recovery.resume.is_some();
    // Its value is in the same word.
    let names_journal = |option: &String| option == "--resume" || option.starts_with("--resume=");
    if resumed && !ssh.remote_options.iter().any(names_journal) {
        words.push("--resume".into());
    }
    if let Some(file) = &ssh.remote_template {
        // A machine that was started from it has its name.
        let named = match (&ssh.remote_name, resumed) {
            (None, true) => Some(DEFAULT_GUEST_NAME),
            (name, _) => name.as_deref(),
        };
        words.extend((!resumed).then(|| option("--template", file)));
        words.extend(named.map(|name| option("--name", name)));
    } else if let Some(path) = &ssh.remote_qmp {
        words.push(option("--qmp", path));
    } else if !resumed {
        if args.domain.domain.is_none() {
            let what = "--ssh needs --remote-template FILE: the command line of the QEMU process \
                        that is started there; or --remote-qmp PATH: the QMP socket of one that \
                        waits for the guest there";
            return Err(Exit::new(ExitStatus::Usage, Reason::Usage, what));
        }
        let uri = ssh.remote_connect.as_deref().unwrap_or(DAEMON);
        words.push(option("--connect", uri));
    }
    if let Some(address) = &ssh.remote_listen {
        words.push(option("--listen", address.to_string()));
    }
    words.extend(ssh.remote_options.iter().map(Into::into));
    let mut line = joined(words);
    if !resumed && ssh.remote_listen.is_none() {
        line.push(OWN_CONNECTION);
    }
    Ok(line)
}

fn option(name: &str, value: impl AsRef<OsStr>) -> OsString {
    let mut option = OsString::from(name);
    option.push("=");
    option.push(value);
    option
}

/// The options of `migrate --resume` by which it reaches the same destination, for messages.
pub(super) fn options(args: &Migrate, host: &str) -> String {
    let ssh = &args.ssh;
    let mut words = vec![OsString::from("--ssh"), host.into()];
    for (name, value) in [
        ("--rsh", &ssh.rsh),
        ("--remote-hikkoshi", &ssh.remote_hikkoshi),
    ] {
        if let Some(value) = value {
            words.extend([name.into(), value.to_string().into()]);
        }
    }
    if let Some(file) = &ssh.remote_template {
        words.extend(["--remote-template".into(), file.into()]);
    }
    if let Some(name) = &ssh.remote_name {
        words.extend(["--remote-name".into(), name.into()]);
    }
    if let Some(path) = &ssh.remote_qmp {
        words.extend(["--remote-qmp".into(), path.into()]);
    }
    // The others are in the destination's journal.
    let mut options = ssh.remote_options.iter();
    while let Some(option) = options.next() {
        let is_journal = option == "--journal";
        if is_journal || option.starts_with("--journal=") {
            words.push(format!("--remote-option={option}").into());
        }
        // Its value is the next word.
        if is_journal && let Some(value) = options.next() {
            words.push(format!("--remote-option={value}").into());
        }
    }
    let words: Vec<_> = words
        .iter()
        .map(|word| quoted(word).display().to_string())
        .collect();
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Args, Command as Subcommand};
    use clap::Parser;

    fn migrate(words: &[&str]) -> Migrate {
        let all = [&["hikkoshi", "migrate", "--ssh", "h"], words].concat();
        match Args::try_parse_from(all).unwrap().command {
            Subcommand::Migrate(args) => *args,
            other => panic!("{other:?}"),
        }
    }

    fn remote_line(words: &[&str]) -> String {
        let line = line(&migrate(words)).unwrap().into_string().unwrap();
        let listens = words.contains(&"--remote-listen") || words.contains(&"--resume");
        match line.strip_suffix(OWN_CONNECTION) {
            Some(line) if !listens => line.to_owned(),
            None if listens => line,
            _ => panic!("{line}"),
        }
    }

    #[test]
    fn receive_is_started_for_a_socket_or_a_domain() {
        assert_eq!(
            remote_line(&["--qmp", "/q", "--remote-qmp", "/r/it's a.qmp"]),
            "hikkoshi ssh-session '--qmp=/r/it'\\''s a.qmp'"
        );
        assert_eq!(
            remote_line(&["--domain", "d", "--remote-option=--set=disk=vda,path=/a b"]),
            "hikkoshi ssh-session '--connect=qemu:///system' \
             '--set=disk=vda,path=/a b'"
        );
        assert_eq!(
            remote_line(&[
                "--domain",
                "d",
                "--remote-connect",
                "test:///default",
                "--remote-listen",
                "10.0.0.2:7000",
                "--remote-hikkoshi",
                "sudo -n '/opt/my programs/hikkoshi'",
            ]),
            "sudo -n '/opt/my programs/hikkoshi' ssh-session \
             '--connect=test:///default' '--listen=10.0.0.2:7000'"
        );
        assert_eq!(
            remote_line(&[
                "--qmp",
                "/q",
                "--remote-template",
                "/etc/a b",
                "--remote-name",
                "web1",
            ]),
            "hikkoshi ssh-session '--template=/etc/a b' '--name=web1'"
        );
        assert_eq!(
            remote_line(&["--qmp", "/q", "--remote-template", "/t"]),
            "hikkoshi ssh-session '--template=/t'"
        );
        let exit = line(&migrate(&["--qmp", "/q"])).unwrap_err();
        assert_eq!(exit.status(), ExitStatus::Usage);
        assert!(exit.text().contains("--remote-qmp"), "{exit:?}");
    }

    #[test]
    fn a_resumed_receive_finds_its_journal() {
        assert_eq!(
            remote_line(&["--resume", "--remote-qmp", "/r"]),
            "hikkoshi ssh-session --resume '--qmp=/r'"
        );
        for (more, name) in [(&[][..], "guest"), (&["--remote-name", "web1"], "web1")] {
            assert_eq!(
                remote_line(&[&["--resume", "--remote-template", "/t"], more].concat()),
                format!("hikkoshi ssh-session --resume '--name={name}'")
            );
        }
        assert_eq!(
            remote_line(&["--resume", "--remote-option=--resume=/j"]),
            "hikkoshi ssh-session '--resume=/j'"
        );
    }

    #[test]
    fn the_program_gets_the_host_and_one_command_line() {
        let args = migrate(&["--resume", "--rsh", "ssh -p 22"]);
        let command = command(&args, "root@h").unwrap();
        let words: Vec<_> = command.get_args().collect();
        assert_eq!(command.get_program(), "ssh");
        assert_eq!(words[..3], ["-p", "22", "root@h"]);
        assert_eq!(words.len(), 4);
    }

    #[test]
    fn the_suggested_command_reaches_the_same_destination() {
        let args = migrate(&[
            "--qmp",
            "/q",
            "--rsh",
            "ssh -p 22",
            "--remote-qmp",
            "/r q",
            "--remote-option=--journal=/j",
            "--remote-option=--allow-overcommit",
        ]);
        assert_eq!(
            options(&args, "root@h"),
            "--ssh root@h --rsh 'ssh -p 22' --remote-qmp '/r q' '--remote-option=--journal=/j'"
        );
        // An option and its value can be two words.
        let two_words = [
            "--qmp",
            "/q",
            "--remote-qmp",
            "/r",
            "--remote-option=--fault-threads",
            "--remote-option=2",
            "--remote-option=--journal",
            "--remote-option=/j j",
            "--remote-option=--stall-timeout=7",
        ];
        assert_eq!(
            options(&migrate(&two_words), "h"),
            "--ssh h --remote-qmp /r '--remote-option=--journal' '--remote-option=/j j'"
        );
        let named = [
            "--qmp",
            "/q",
            "--remote-template",
            "/t",
            "--remote-name",
            "w",
        ];
        assert_eq!(
            options(&migrate(&named), "h"),
            "--ssh h --remote-template /t --remote-name w"
        );
    }
}
