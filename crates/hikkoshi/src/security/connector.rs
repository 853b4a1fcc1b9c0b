//! The source's side: where the destination is, and how the links to it are protected.

use std::io::{self, BufRead, Read};

use error_reporter::Report;
use hikkoshi_engine::CancelFlag;
use hikkoshi_link::tls::{Invitation, SourceCredentials, TlsClient};
use hikkoshi_link::{Address, KeptRequest, Remote, RequestError, request_invitation};

use super::certificates;
use super::errors::{
    beyond_this_machine, check_still_encrypted, check_still_plaintext, credentials, unencrypted,
    usage,
};
use crate::args::{InvitationArg, Security};
use crate::output::exit::{Exit, ExitStatus};
use crate::output::reason::{Holder, Reason};

/// The longest line that is read for an invitation, in bytes.
const MAX_LINE: u64 = 4096;

const NO_INVITATION: &str = "--to -: there is no invitation on standard input: it has ended, or its \
                             first line is empty";

/// The destination of a new migration.
pub(crate) fn remote(
    invitation: Option<&InvitationArg>,
    address: Option<&Address>,
    security: &Security,
) -> Result<Remote, Exit> {
    if let Some(argument) = invitation {
        return invited(argument);
    }
    let Some(address) = address.cloned() else {
        return Err(usage("neither an address nor an invitation is given"));
    };
    if let Some(certificates) = certificates::read(&security.certificates)? {
        let host = address.host().unwrap_or("localhost");
        let tls = Some(
            TlsClient::certified(certificates, host)
                .map_err(|error| credentials(Report::new(error)))?,
        );
        return Ok(Remote {
            tls,
            ..address.into()
        });
    }
    if security.plaintext
        || address
            .is_local()
            .map_err(|error| usage(Report::new(error)))?
    {
        return Ok(Remote {
            loopback_only: !security.plaintext,
            ..address.into()
        });
    }
    Err(unencrypted(beyond_this_machine(&address)).with(
        "give the invitation that 'hikkoshi receive' prints (--to INVITATION, without an address), \
         or certificates (--tls-ca, --tls-cert, --tls-key); on a network that you trust, give \
         --plaintext on both sides",
    ))
}

/// The destination that an invitation names.
pub(crate) fn invited(argument: &InvitationArg) -> Result<Remote, Exit> {
    let invitation = invitation(argument)?;
    let tls = TlsClient::invited(&invitation).map_err(|error| credentials(Report::new(error)))?;
    Ok(Remote {
        tls: Some(tls),
        ..invitation.address().clone().into()
    })
}

/// How the `hikkoshi daemon` at `address` is asked for an invitation: by a certificate.
pub(crate) fn certified(address: &Address, security: &Security) -> Result<TlsClient, Exit> {
    let Some(certificates) = certificates::read(&security.certificates)? else {
        return Err(usage("--name needs certificates: --tls-ca"));
    };
    let host = address.host().unwrap_or("localhost");
    TlsClient::certified(certificates, host).map_err(|error| credentials(Report::new(error)))
}

/// The destination of the guest `name`: the `hikkoshi daemon` at `address` admits the certificate
/// of `client`, and is asked for an invitation. The receiver ends if the request is dropped before
/// the guest is on its way.
pub(crate) fn invited_by_certificate(
    name: &str,
    address: &Address,
    client: &TlsClient,
    cancel: &CancelFlag,
) -> Result<(Remote, KeptRequest), Exit> {
    let asked = request_invitation(address, client, name, cancel);
    let (invitation, request) = asked.map_err(|error| {
        let reason = match &error {
            _ if cancel.is_cancelled() => Reason::Cancelled,
            RequestError::Refused(_) => Reason::Remote,
            _ => Reason::Connect,
        };
        let what = format!(
            "asking the 'hikkoshi daemon' at {address} for an invitation: {}",
            Report::new(&error)
        );
        // The guest's QEMU has not been looked at.
        Exit::new(ExitStatus::AtSource, reason, what)
            .with("nothing was changed")
            .held_by(Holder::Unknown)
    })?;
    let tls = TlsClient::invited(&invitation).map_err(|error| credentials(Report::new(error)))?;
    // The address that was reached: the one in the invitation may be for other networks.
    let remote = Remote {
        tls: Some(tls),
        ..address.clone().into()
    };
    Ok((remote, request))
}

/// The destination of a migration that is resumed. `recorded` is the protection of its links in the
/// journal.
pub(crate) fn resumed_remote(
    security: &Security,
    address: &Address,
    recorded: Option<SourceCredentials>,
) -> Result<Remote, Exit> {
    let tls = match recorded {
        None => {
            check_still_plaintext(security, address)?;
            None
        }
        Some(recorded) => {
            check_still_encrypted(security)?;
            let host = address.host().unwrap_or("localhost");
            let client = match certificates::read(&security.certificates)? {
                Some(certificates) => TlsClient::certified(certificates, host),
                None => recorded.client(),
            };
            Some(client.map_err(|error| credentials(Report::new(error)))?)
        }
    };
    Ok(Remote {
        loopback_only: tls.is_none() && !security.plaintext,
        tls,
        ..address.clone().into()
    })
}

/// The invitation of `--to`.
fn invitation(argument: &InvitationArg) -> Result<Invitation, Exit> {
    if let Some(text) = argument.text() {
        return text
            .parse()
            .map_err(|error| credentials(Report::new(error)));
    }
    let mut line = String::new();
    let read = io::stdin().lock().take(MAX_LINE).read_line(&mut line);
    read.map_err(|e| {
        credentials(format!(
            "reading the invitation from standard input: {}",
            Report::new(&e)
        ))
    })?;
    if line.trim().is_empty() {
        return Err(credentials(NO_INVITATION).with(
            "standard input is for the line that 'hikkoshi receive' prints and that begins with \
             'hikkoshi1:'; it can come from a file ('--to - < FILE') or through a pipe",
        ));
    }
    line.parse()
        .map_err(|error| credentials(Report::new(error)))
}
