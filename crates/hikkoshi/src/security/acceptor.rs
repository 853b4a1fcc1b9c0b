//! The destination's side: which sources are accepted, and how the links are protected.

use error_reporter::Report;
use hikkoshi_engine::Observer;
use hikkoshi_link::tls::{DestinationCredentials, Invitation, TlsServer};
use hikkoshi_link::{Address, Listener};

use super::certificates;
use super::errors::{
    beyond_this_machine, check_still_encrypted, check_still_plaintext, credentials, unencrypted,
    usage,
};
use super::invitation_address::InvitationAddress;
use crate::args::{Receive, Security, StartedBy};
use crate::output::exit::{Exit, ExitStatus};
use crate::output::reason::Reason;
use crate::output::streams;

/// How `hikkoshi receive` protects its links. It is decided before QEMU is accessed.
pub(crate) enum Acceptor {
    /// No encryption.
    Plaintext {
        /// Whether `--plaintext` was given, which allows it beyond this host.
        allowed_beyond: bool,
    },
    /// Sources that have the invitation.
    Invitation(TlsServer, InvitationAddress),
    /// Sources that have a certificate of the given authority.
    Authority(TlsServer),
    /// The source of a migration that is resumed.
    Known(TlsServer),
}

impl Acceptor {
    /// For a new migration.
    pub(crate) fn new(args: &Receive, listen: &Address) -> Result<Self, Exit> {
        let security = &args.security;
        if let Some(certificates) = certificates::read(&security.certificates)? {
            return TlsServer::certified(certificates)
                .map(Self::Authority)
                .map_err(|error| credentials(Report::new(error)));
        }
        let allowed_beyond = security.plaintext;
        let invite = args.invite || args.address.advertise.is_some();
        let local = listen
            .is_local()
            .map_err(|error| usage(Report::new(error)))?;
        if security.plaintext || (local && !invite) {
            return Ok(Self::Plaintext { allowed_beyond });
        }
        let address = InvitationAddress::new(args.address.advertise.as_ref(), listen)?;
        let server = TlsServer::inviting().map_err(|error| credentials(Report::new(error)))?;
        Ok(Self::Invitation(server, address))
    }

    /// For a migration that is resumed; `recorded` is the protection of its links in the journal.
    pub(crate) fn resumed(
        security: &Security,
        listen: &Address,
        recorded: Option<DestinationCredentials>,
    ) -> Result<Self, Exit> {
        let Some(recorded) = recorded else {
            check_still_plaintext(security, listen)?;
            return Ok(Self::Plaintext {
                allowed_beyond: security.plaintext,
            });
        };
        check_still_encrypted(security)?;
        let server = match certificates::read(&security.certificates)? {
            Some(certificates) => TlsServer::certified(certificates),
            None => recorded.server(),
        };
        server
            .map(Self::Known)
            .map_err(|error| credentials(Report::new(error)))
    }

    /// What protects the links.
    pub(crate) fn tls(&self) -> Option<&TlsServer> {
        match self {
            Self::Plaintext { .. } => None,
            Self::Invitation(server, _) | Self::Authority(server) | Self::Known(server) => {
                Some(server)
            }
        }
    }

    /// Whether an invitation will be printed on standard output.
    pub(crate) fn prints_invitation(&self, args: &Receive) -> bool {
        matches!(self, Self::Invitation(..)) && !args.output.has_json_on_stdout()
    }

    /// Starts to listen.
    pub(crate) fn bind(&self, listen: &Address) -> Result<Listener, Exit> {
        let listener = Listener::bind(listen).map_err(|error| {
            let what = format!("listening at {listen}: {}", Report::new(&error));
            Exit::new(ExitStatus::Usage, Reason::CannotListen, what)
        })?;
        if let Some(server) = self.tls() {
            return Ok(listener.with_tls(server.clone()));
        }
        // Checked again: a host name may have been resolved to another address.
        let local = listener
            .address()
            .is_local()
            .map_err(|error| usage(Report::new(error)))?;
        if local
            || matches!(
                self,
                Self::Plaintext {
                    allowed_beyond: true
                }
            )
        {
            return Ok(listener);
        }
        Err(unencrypted(beyond_this_machine(listener.address())))
    }

    /// Reports the address, and prints the invitation if there is one.
    pub(crate) fn announce(
        &self,
        args: &Receive,
        listener: &Listener,
        observer: &dyn Observer,
    ) -> Result<(), Exit> {
        let waiting = self.waiting(args, listener.address());
        let Self::Invitation(server, invitation_address) = self else {
            observer.notice(&waiting);
            return Ok(());
        };
        let address = invitation_address.resolve(listener.address())?;
        if let Some(notice) = invitation_address.notice() {
            observer.notice(&notice);
        }
        observer.notice(&waiting);
        if let Some(invitation) = server.invitation(address) {
            print(&invitation, args)?;
        }
        Ok(())
    }

    /// What is waited for, and what the invitation is that people see.
    fn waiting(&self, args: &Receive, address: &Address) -> String {
        let waiting = format!("waiting for a guest at {address}");
        match self {
            Self::Authority(_) => {
                format!("{waiting}, from a source with a certificate of the given authority")
            }
            // Otherwise another program reads it.
            Self::Invitation(..) if args.started_by == StartedBy::Operator => {
                let place = match args.output.has_json_on_stdout() {
                    true => "the next line",
                    false => "the line on standard output",
                };
                let guest = match args.guest.domain.connect {
                    Some(_) => "--domain NAME",
                    None => "--qmp PATH",
                };
                format!(
                    "{waiting}, from a source with the invitation: {place}. It is a secret, and \
                     valid for one migration: 'hikkoshi migrate {guest} --to -' reads it from \
                     standard input"
                )
            }
            Self::Plaintext { .. } | Self::Invitation(..) | Self::Known(_) => waiting,
        }
    }
}

/// Prints the invitation on a line of its own.
fn print(invitation: &Invitation, args: &Receive) -> Result<(), Exit> {
    if args.output.has_json_on_stdout() {
        streams::invitation(&invitation.to_string());
        return Ok(());
    }
    match streams::try_to_stdout(&format!("{invitation}\n")) {
        // Its daemon has ended: no source can get the invitation.
        Err(error) if args.name_for_daemon().is_some() => {
            let what = format!("printing the invitation: {}", Report::new(&error));
            Err(Exit::new(ExitStatus::AtSource, Reason::System, what).with("nothing was changed"))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::{Args, Command};

    /// What `receive` with these options says that it waits for.
    fn waiting(options: &str, started_by: StartedBy) -> String {
        let words = "hikkoshi receive --listen unix:/run/s --qmp q".split(' ');
        let all = words.chain(options.split_whitespace());
        let Ok(Command::Receive(mut args)) = Args::try_parse_from(all).map(|args| args.command)
        else {
            unreachable!("it is a receive");
        };
        args.started_by = started_by;
        let address = args.listen.clone().unwrap();
        let acceptor = Acceptor::new(&args, &address).unwrap();
        acceptor.waiting(&args, &address)
    }

    #[test]
    fn an_invitation_is_named_only_where_it_is_printed_for_people() {
        let only = "waiting for a guest at unix:/run/s";
        assert_eq!(waiting("", StartedBy::Operator), only);
        assert_eq!(waiting("--invite", StartedBy::Source), only);
        let by_daemon = StartedBy::Daemon("web".to_owned());
        assert_eq!(waiting("--invite", by_daemon), only);
        for (options, place) in [
            ("--invite", "the line on standard output"),
            ("--invite --json -", "the next line"),
        ] {
            let text = waiting(options, StartedBy::Operator);
            let begin =
                format!("{only}, from a source with the invitation: {place}. It is a secret");
            assert!(text.starts_with(&begin), "{text}");
        }
    }

    #[test]
    fn a_migration_that_is_resumed_has_no_invitation() {
        let server = TlsServer::inviting().unwrap();
        let words = [
            "hikkoshi",
            "receive",
            "--listen",
            "unix:/run/s",
            "--qmp",
            "q",
        ];
        let Ok(Command::Receive(args)) = Args::try_parse_from(words).map(|args| args.command)
        else {
            unreachable!("it is a receive");
        };
        let address = args.listen.clone().unwrap();
        let text = Acceptor::Known(server).waiting(&args, &address);
        assert_eq!(text, "waiting for a guest at unix:/run/s");
    }
}
