//! The session between `migrate --ssh` and the `ssh-session` that it starts.
//!
//! ```text
//! migrate ── (standard input, held open) ──▶ session   its end: no source will come
//!         ◀─ one line on standard output ──            the invitation, or that it listens,
//!                                                      or that another process does
//!         ◀─ lines on standard error ──────            messages
//! ```
//!
//! Once a source has connected, `ssh-session` does not depend on the session any more: its end is
//! not a signal (SIGHUP), and messages that cannot be written are dropped. A guest that runs at the
//! destination needs this engine for its missing pages.

use std::env;
use std::io::{self, IsTerminal};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;

use hikkoshi_engine::CancelFlag;
use hikkoshi_link::Address;

use crate::args::{Receive, RecoveryOptions, SshSession};
use crate::commands::resume_command::before_search;
use crate::commands::session::detach;
use crate::commands::{receive, signals};
use crate::output::exit::{Exit, ExitStatus};
use crate::output::reason::Reason;

/// Set by sshd (sshd(8)): client address, client port, server address, server port.
const CONNECTION: &str = "SSH_CONNECTION";

/// A file for each user whose runtime directory stays when the user logs out (loginctl(1)).
const LINGERING: &str = "/var/lib/systemd/linger";

pub(crate) fn run(args: &SshSession) -> Result<ExitStatus, Exit> {
    let cancel = prepare(&args.recovery).map_err(before_search(&args.recovery))?;
    receive::receive_guest(&with_address(args), cancel)
}

fn prepare(recovery: &RecoveryOptions) -> Result<CancelFlag, Exit> {
    check(recovery)?;
    detach();
    signals::cancel_except_on_hangup()
}

/// Refuses a session whose end would not be noticed, or would remove the journal.
///
/// # Errors
/// Standard input is a terminal, or the run folder does not stay when the user logs out.
fn check(recovery: &RecoveryOptions) -> Result<(), Exit> {
    if io::stdin().is_terminal() {
        let what = "standard input is a terminal, whose end does not end the wait for a source: \
                    a session without one is needed (no -t in --rsh)";
        return Err(Exit::new(ExitStatus::Usage, Reason::Usage, what));
    }
    // A migration is resumed in any case: its journal is there now.
    if recovery.resume.is_some() {
        return Ok(());
    }
    let runtime = env::var_os("XDG_RUNTIME_DIR").unwrap_or_default();
    // sshd sets it (sshd(8)).
    let user = env::var("LOGNAME").unwrap_or_default();
    check_folder(
        &recovery.journals.path(),
        Path::new(&runtime),
        Path::new(LINGERING),
        &user,
    )
}

/// systemd removes a user's runtime directory when the user's last session ends (pam_systemd(8)).
/// The guest needs this engine and its journal after that.
fn check_folder(run: &Path, runtime: &Path, lingering: &Path, user: &str) -> Result<(), Exit> {
    let is_removed = !runtime.as_os_str().is_empty() && run.starts_with(runtime);
    let lingers = !user.is_empty() && lingering.join(user).exists();
    if !is_removed || lingers {
        return Ok(());
    }
    let user = if user.is_empty() { "USER" } else { user };
    let what = format!(
        "the journal would be in {}, which is removed when this user logs out, while the guest may \
         still need it",
        run.display()
    );
    let next = format!(
        "nothing was changed. Run 'loginctl enable-linger {user}' there once, or name a folder that \
         stays: --remote-option=--journal=DIR"
    );
    Err(Exit::new(ExitStatus::Usage, Reason::Journal, what).with(next))
}

/// What is received, with an address to listen on: by default the one that the source's ssh has
/// connected to. A migration that is resumed has its own.
fn with_address(args: &SshSession) -> Receive {
    if args.listen.is_some() || args.recovery.resume.is_some() {
        return args.receive(args.listen.clone());
    }
    let given = args.ssh_connection.as_deref().and_then(own_address);
    let own = given.or_else(|| own_address(&env::var(CONNECTION).ok()?));
    let address = own.unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
    args.receive(Some(Address::Tcp(SocketAddr::new(address, 0).to_string())))
}

/// This host's address in `SSH_CONNECTION`. A link-local IPv6 address has a scope that other hosts
/// do not know: `None`.
fn own_address(connection: &str) -> Option<IpAddr> {
    let address: IpAddr = connection.split(' ').nth(2)?.parse().ok()?;
    Some(address.to_canonical())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_is_the_one_that_ssh_has_connected_to() {
        let own = |connection: &str| own_address(connection).map(|own| own.to_string());
        let expected = |text: &str| Some(text.to_owned());
        assert_eq!(own("10.0.0.1 40000 10.0.0.2 22"), expected("10.0.0.2"));
        assert_eq!(own("::1 40000 fd00::2 22"), expected("fd00::2"));
        assert_eq!(own("a 1 ::ffff:10.0.0.2 22"), expected("10.0.0.2"));
        for other in ["", "10.0.0.1 1", "a 1 fe80::1%eth0 22", "a 1 name 22"] {
            assert_eq!(own(other), None, "{other}");
        }
    }

    #[test]
    fn the_address_that_the_shell_passes_on_is_used() {
        use clap::Parser;
        let listen = |more: &[&str]| {
            let words = ["hikkoshi", "ssh-session", "--qmp", "/q"];
            let args = crate::args::Args::parse_from([&words[..], more].concat());
            let crate::args::Command::SshSession(args) = args.command else {
                panic!("{args:?}");
            };
            with_address(&args).listen.as_ref().map(ToString::to_string)
        };
        let passed = "--ssh-connection=10.0.0.1 40000 10.0.0.2 22";
        assert_eq!(listen(&[passed]).unwrap(), "10.0.0.2:0");
        assert_eq!(listen(&[passed, "--listen", "h:1"]).unwrap(), "h:1");
        // Without one, if the test itself does not run in a session.
        if std::env::var_os(CONNECTION).is_none() {
            assert_eq!(listen(&["--ssh-connection="]).unwrap(), "0.0.0.0:0");
        }
    }

    #[test]
    fn a_run_folder_has_to_stay_when_the_user_logs_out() {
        let folder = tempfile::tempdir().unwrap();
        let refused = |run: &str, runtime: &str| {
            let checked = check_folder(Path::new(run), Path::new(runtime), folder.path(), "vm");
            checked.err().map(|exit| format!("{exit:?}"))
        };
        let why = refused("/run/user/7/hikkoshi", "/run/user/7").unwrap();
        assert!(why.contains("/run/user/7/hikkoshi"), "{why}");
        assert_eq!(refused("/run/hikkoshi", "/run/user/7"), None);
        assert_eq!(refused("/run/hikkoshi", ""), None);
        std::fs::write(folder.path().join("other"), "").unwrap();
        assert!(refused("/run/user/7/hikkoshi", "/run/user/7").is_some());
        std::fs::write(folder.path().join("vm"), "").unwrap();
        assert_eq!(refused("/run/user/7/hikkoshi", "/run/user/7"), None);
    }
}
