//! Command lines whose protection of the links cannot be used. Nothing was tried.

use std::fmt;

use error_reporter::Report;
use hikkoshi_link::Address;

use crate::args::Security;
use crate::output::exit::{Exit, ExitStatus};
use crate::output::reason::Reason;

pub(super) fn usage(why: impl fmt::Display) -> Exit {
    Exit::new(ExitStatus::Usage, Reason::Usage, why)
}

/// An invitation, certificate or key that cannot be used.
pub(super) fn credentials(why: impl fmt::Display) -> Exit {
    Exit::new(ExitStatus::Usage, Reason::Credentials, why)
}

/// An address beyond this host, without encryption.
pub(super) fn unencrypted(why: impl fmt::Display) -> Exit {
    Exit::new(ExitStatus::Usage, Reason::EncryptionNeeded, why)
}

/// Why links to or at `address` need encryption.
pub(super) fn beyond_this_machine(address: &Address) -> String {
    format!(
        "{address} is beyond this host: without encryption anyone on the network path could \
         read and change the guest's memory"
    )
}

/// Checks the options for resuming a migration that began without encryption: the other side does
/// not encrypt.
pub(super) fn check_still_plaintext(security: &Security, address: &Address) -> Result<(), Exit> {
    if security.certificates.tls_ca.is_some() {
        return Err(usage("this migration began without encryption").with("leave --tls-ca out"));
    }
    if security.plaintext
        || address
            .is_local()
            .map_err(|error| usage(Report::new(error)))?
    {
        return Ok(());
    }
    let what = format!(
        "this migration began without encryption, and {}",
        beyond_this_machine(address)
    );
    Err(unencrypted(what).with("on a network that you trust, give --plaintext on both sides"))
}

/// Checks the options for resuming a migration that began with encryption: the other side expects
/// it.
pub(super) fn check_still_encrypted(security: &Security) -> Result<(), Exit> {
    if security.plaintext {
        return Err(usage("this migration began with encryption").with("leave --plaintext out"));
    }
    Ok(())
}
