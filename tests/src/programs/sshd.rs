//! A real SSH server and its client, between two namespaces.

use crate::Program;
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const RUN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../build/openssh/run");

/// The port of the server.
const PORT: u16 = 2222;

/// Runs the server in a mount namespace of its own, with the user for its unprivileged processes
/// (sshd(8), *privilege separation*) and its folder.
const SCRIPT: &str = r#"
mount --make-rprivate /
mkdir -p -m 755 /run/sshd
cp /etc/passwd "$1/passwd"
grep -q ^sshd: "$1/passwd" || echo sshd:x:64999:65534::/run/sshd:/usr/sbin/nologin >>"$1/passwd"
mount --bind "$1/passwd" /etc/passwd
exec "$2" "$3" -D -e -f "$1/config"
"#;

/// A server on one host, which accepts one key.
#[derive(Debug)]
pub struct Sshd {
    folder: PathBuf,
    _server: Program,
}

impl Sshd {
    /// Starts it on a host, where `on_host` makes the command for a program; `address` is the
    /// host's IP address, `folder` is for files. `None`: `setup.sh openssh` was not run.
    ///
    /// # Panics
    /// When it does not start.
    pub fn start(
        folder: &Path,
        on_host: impl FnOnce(&str) -> Command,
        address: &str,
    ) -> Option<Self> {
        if !Path::new(RUN).exists() {
            return None;
        }
        let folder = folder.join("ssh");
        fs::create_dir(&folder).unwrap();
        for key in ["host", "user"] {
            let made = Command::new(RUN)
                .args(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f"])
                .arg(folder.join(key))
                .status();
            assert!(made.unwrap().success(), "ssh-keygen");
        }
        let at = folder.display();
        let config = format!(
            "ListenAddress {address}:{PORT}\nHostKey {at}/host\nAuthorizedKeysFile {at}/user.pub\n\
             StrictModes no\nUsePAM no\nPermitRootLogin yes\nPidFile none\n"
        );
        fs::write(folder.join("config"), config).unwrap();
        let sshd = Path::new(RUN).canonicalize().unwrap();
        let mut command = on_host("unshare");
        command
            .args(["--mount", "sh", "-euc", SCRIPT, "sh"])
            .arg(&folder)
            .arg(sshd)
            .arg("sshd");
        let server = Program::start("sshd", command);
        server.wait_stderr("Server listening on");
        Some(Self {
            folder,
            _server: server,
        })
    }

    /// The client's command, for `--rsh`.
    pub fn command(&self) -> String {
        let key = self.folder.join("user");
        format!(
            "'{RUN}' ssh -F none -i '{}' -p {PORT} -o BatchMode=yes -o StrictHostKeyChecking=no \
             -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR",
            key.display()
        )
    }

    /// Kills the client that this program has started.
    ///
    /// # Panics
    /// When there is none.
    pub fn kill_client_of(program: &Program) {
        let children = format!("/proc/{0}/task/{0}/children", program.pid());
        let children = fs::read_to_string(children).unwrap();
        let client = children.split_whitespace().find(|pid| {
            let name = fs::read_to_string(format!("/proc/{pid}/comm"));
            name.is_ok_and(|name| name.trim() == "ssh")
        });
        let client = Pid::from_raw(client.unwrap().parse().unwrap()).unwrap();
        kill_process(client, Signal::KILL).unwrap();
    }
}
