//! How the links are protected: from the command line to what the engine takes.

mod invitation_address;

use std::fmt;
use std::io::{self, BufRead, Read};
use std::os::unix::fs::PermissionsExt;

use hikkoshi_engine::Observer;
use hikkoshi_link::tls::{
    Certificates, DestinationCredentials, Invitation, SourceCredentials, TlsClient, TlsServer,
};
use hikkoshi_link::{Address, Listener, Remote};

use crate::args::{InvitationArg, Migrate, Receive, Security};
use crate::journal;
use crate::output::exit::{Exit, Status};
use crate::output::reason::Reason;
use crate::output::streams;
use crate::security::invitation_address::Inviting;

/// The longest line that is looked at for an invitation, bytes.
const LONGEST: u64 = 4096;

/// What stands for an invitation on standard input ends without one.
const NO_INVITATION: &str = "--to -: standard input ended, or its first line is empty: there is no \
                             invitation on it";

/// The certificates given on the command line.
fn certificates(security: &Security) -> Result<Option<Certificates>, Exit> {
    match (&security.tls_ca, &security.tls_cert, &security.tls_key) {
        (Some(ca), Some(cert), Some(key)) => {
            // The journal names them, and --resume may run in another working directory.
            let [ca, cert, key] = [ca, cert, key].map(|path| journal::absolute(path));
            Certificates::read(&ca, &cert, &key)
                .map(Some)
                .map_err(credentials)
        }
        _ => Ok(None),
    }
}

/// Warns if users other than its owner can read the private key.
pub fn warn_of_readable_key(security: &Security, observer: &dyn Observer) {
    if let Some(key) = &security.tls_key
        // An error is reported where the key is read.
        && let Ok(metadata) = std::fs::metadata(key)
        && let Some(readers) = readers(metadata.permissions().mode())
    {
        observer.notice(&format!(
            "the private key in {} can be read by {readers}, who can impersonate this side \
             ('chmod go-rwx' prevents that)",
            key.display()
        ));
    }
}

/// Who besides the owner can read a file of that mode.
fn readers(mode: u32) -> Option<&'static str> {
    match (mode & 0o040 != 0, mode & 0o004 != 0) {
        (_, true) => Some("everybody on this machine"),
        (true, false) => Some("its group"),
        (false, false) => None,
    }
}

/// The invitation that `--to` names.
fn invitation(argument: &InvitationArg) -> Result<Invitation, Exit> {
    if let Some(text) = argument.text() {
        return text.parse().map_err(credentials);
    }
    let mut line = String::new();
    let read = io::stdin().lock().take(LONGEST).read_line(&mut line);
    read.map_err(|e| credentials(format!("reading the invitation from standard input: {e}")))?;
    if line.trim().is_empty() {
        return Err(credentials(NO_INVITATION).with(
            "standard input is for the line that 'hikkoshi receive' shows and that begins with \
             'hikkoshi1:'; it can come from a file ('--to - < FILE') or through a pipe",
        ));
    }
    line.parse().map_err(credentials)
}

/// Where the destination is, and how the links to it are protected.
pub fn remote(args: &Migrate) -> Result<Remote, Exit> {
    if let Some(to) = &args.to {
        let invitation = invitation(to)?;
        return Ok(Remote {
            tls: Some(TlsClient::invited(&invitation).map_err(credentials)?),
            ..invitation.address().clone().into()
        });
    }
    let Some(address) = args.address.clone() else {
        return Err(usage("neither an address nor an invitation is given"));
    };
    let security = &args.common.security;
    if let Some(certificates) = certificates(security)? {
        let host = address.host().unwrap_or("localhost");
        let tls = Some(TlsClient::certified(certificates, host).map_err(credentials)?);
        return Ok(Remote {
            tls,
            ..address.into()
        });
    }
    if security.plaintext || address.is_local().map_err(usage)? {
        return Ok(Remote {
            only_here: !security.plaintext,
            ..address.into()
        });
    }
    Err(unencrypted(beyond(&address)).with(
        "give the invitation that 'hikkoshi receive' shows (--to INVITATION, without an address), \
         or certificates (--tls-ca, --tls-cert, --tls-key); on a network that you trust, say \
         --plaintext on both sides",
    ))
}

/// Why nothing is said to `address` or listened to there.
fn beyond(address: &Address) -> String {
    format!(
        "{address} is beyond this machine: without encryption anybody on the way could read and \
         change the guest's memory"
    )
}

/// The same for a migration that is taken up again: `recorded` is how its links
/// were protected, and `address` where its destination was.
pub fn remote_again(
    args: &Migrate,
    address: &Address,
    recorded: Option<SourceCredentials>,
) -> Result<Remote, Exit> {
    let address = args.address.as_ref().unwrap_or(address).clone();
    let tls = match recorded {
        None => {
            plaintext_again(&args.common.security, &address)?;
            None
        }
        Some(recorded) => {
            encrypted_again(&args.common.security)?;
            let host = address.host().unwrap_or("localhost");
            let client = match certificates(&args.common.security)? {
                Some(certificates) => TlsClient::certified(certificates, host),
                None => recorded.client(),
            };
            Some(client.map_err(credentials)?)
        }
    };
    Ok(Remote {
        only_here: tls.is_none() && !args.common.security.plaintext,
        tls,
        ..address.into()
    })
}

/// The other side does not encrypt: this one cannot either.
fn plaintext_again(security: &Security, address: &Address) -> Result<(), Exit> {
    if security.tls_ca.is_some() {
        return Err(usage("this migration began without encryption").with("leave --tls-ca out"));
    }
    if security.plaintext || address.is_local().map_err(usage)? {
        return Ok(());
    }
    let what = format!(
        "this migration began without encryption, and {address} is beyond this machine: anybody on \
         the way could read and change the guest's memory"
    );
    Err(unencrypted(what).with("on a network that you trust, say --plaintext on both sides"))
}

/// The other side expects encryption.
fn encrypted_again(security: &Security) -> Result<(), Exit> {
    if security.plaintext {
        return Err(usage("this migration began with encryption").with("leave --plaintext out"));
    }
    Ok(())
}

/// How `hikkoshi receive` protects its links: found out before anything is
/// touched.
pub enum Door {
    Plaintext {
        /// Whether it was asked for, beyond this machine too.
        aloud: bool,
    },
    Invitation(TlsServer, Inviting),
    Authority(TlsServer),
    /// As the source knows it from before.
    Known(TlsServer),
}

impl Door {
    pub fn of(args: &Receive, listen: &Address) -> Result<Self, Exit> {
        let security = &args.common.security;
        if let Some(certificates) = certificates(security)? {
            return TlsServer::certified(certificates)
                .map(Self::Authority)
                .map_err(credentials);
        }
        let aloud = security.plaintext;
        let invite = args.invite || args.advertise.is_some();
        let local = listen.is_local().map_err(usage)?;
        if security.plaintext || (local && !invite) {
            return Ok(Self::Plaintext { aloud });
        }
        // Before QEMU is touched.
        let inviting = Inviting::of(args.advertise.as_ref(), listen)?;
        let server = TlsServer::inviting().map_err(credentials)?;
        Ok(Self::Invitation(server, inviting))
    }

    /// For a migration that is taken up again: `recorded` is how its links were
    /// protected.
    pub fn again(
        args: &Receive,
        listen: &Address,
        recorded: Option<DestinationCredentials>,
    ) -> Result<Self, Exit> {
        let security = &args.common.security;
        let aloud = security.plaintext;
        let Some(recorded) = recorded else {
            plaintext_again(security, listen)?;
            return Ok(Self::Plaintext { aloud });
        };
        encrypted_again(security)?;
        let server = match certificates(security)? {
            Some(certificates) => TlsServer::certified(certificates),
            None => recorded.server(),
        };
        server.map(Self::Known).map_err(credentials)
    }

    /// What protects the links.
    pub fn tls(&self) -> Option<&TlsServer> {
        match self {
            Self::Plaintext { .. } => None,
            Self::Invitation(server, _) | Self::Authority(server) | Self::Known(server) => {
                Some(server)
            }
        }
    }

    /// Whether it will print an invitation on standard output.
    pub fn prints_invitation(&self, args: &Receive) -> bool {
        matches!(self, Self::Invitation(..)) && !is_for_account(args)
    }

    /// Begins to listen.
    pub fn bind(&self, listen: &Address) -> Result<Listener, Exit> {
        let listener = Listener::bind(listen).map_err(|error| {
            let what = format!("listening at {listen}: {error}");
            Exit::new(Status::Usage, Reason::CannotListen, what)
        })?;
        if let Some(server) = self.tls() {
            return Ok(listener.with_tls(server.clone()));
        }
        // Where the name led when it was used.
        let local = listener.address().is_local().map_err(usage)?;
        if local || matches!(self, Self::Plaintext { aloud: true }) {
            return Ok(listener);
        }
        Err(unencrypted(beyond(listener.address())))
    }

    /// Says where it is listened; shows an invitation, where that is how sources
    /// are known.
    pub fn open(
        self,
        args: &Receive,
        listener: &Listener,
        observer: &dyn Observer,
    ) -> Result<(), Exit> {
        let waiting = format!("waiting for a guest at {}", listener.address());
        match self {
            Self::Plaintext { .. } | Self::Known(_) => observer.notice(&waiting),
            Self::Authority(_) => {
                let from = "from whoever has a certificate of the authority given";
                observer.notice(&format!("{waiting}, {from}"));
            }
            Self::Invitation(server, inviting) => {
                let address = inviting.address(listener.address())?;
                if let Some(which) = inviting.notice() {
                    observer.notice(&which);
                }
                observer.notice(&format!(
                    "{waiting}, from whoever has this invitation; it is a secret, and good for one \
                     migration: 'hikkoshi migrate --qmp PATH --to -' takes it on standard input"
                ));
                if let Some(invitation) = server.invitation(address) {
                    show(&invitation, args);
                }
            }
        }
        Ok(())
    }
}

/// On a line of its own, for a person or a program to take.
fn show(invitation: &Invitation, args: &Receive) {
    if is_for_account(args) {
        streams::invitation(&invitation.to_string());
    } else {
        streams::to_stdout(&format!("{invitation}\n"));
    }
}

/// Whether standard output is for the account alone.
fn is_for_account(args: &Receive) -> bool {
    args.common.json.as_deref() == Some("-".as_ref())
}

fn usage(why: impl fmt::Display) -> Exit {
    Exit::new(Status::Usage, Reason::Usage, why)
}

fn credentials(why: impl fmt::Display) -> Exit {
    Exit::new(Status::Usage, Reason::Credentials, why)
}

/// Whatever was said to that address, or listened to there, others could read.
fn unencrypted(why: impl fmt::Display) -> Exit {
    Exit::new(Status::Usage, Reason::EncryptionNeeded, why)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::Permissions;
    use std::sync::Mutex;

    #[derive(Debug, Default)]
    struct Heard(Mutex<Vec<String>>);

    impl Observer for Heard {
        fn progress(&self, _: &hikkoshi_engine::report::Progress) {}

        fn notice(&self, text: &str) {
            self.0.lock().unwrap().push(text.to_owned());
        }
    }

    #[test]
    fn a_key_for_everybodys_eyes_is_told() {
        let key = tempfile::NamedTempFile::new().unwrap();
        let said = |mode| {
            std::fs::set_permissions(key.path(), Permissions::from_mode(mode)).unwrap();
            let security = Security {
                plaintext: false,
                tls_ca: None,
                tls_cert: None,
                tls_key: Some(key.path().to_owned()),
            };
            let heard = Heard::default();
            warn_of_readable_key(&security, &heard);
            heard.0.into_inner().unwrap().join("\n")
        };
        assert_eq!(said(0o600), "");
        assert_eq!(said(0o400), "");
        assert!(said(0o640).contains("its group"));
        for mode in [0o644, 0o604] {
            let text = said(mode);
            let name = key.path().to_str().unwrap();
            assert!(text.contains("everybody") && text.contains(name), "{text}");
        }
    }
}
