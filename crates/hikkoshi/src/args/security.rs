//! How the links are protected.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use clap::Args;

use super::headings::SECURITY;

/// Protection of the links; options of both sides.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct Security {
    /// Do not encrypt, even beyond this host
    ///
    /// Anyone on the network path can read and change the guest's memory. Give it on both sides.
    #[arg(verbatim_doc_comment,
        long,
        conflicts_with_all = ["tls_ca", "tls_cert", "tls_key"],
        help_heading = SECURITY
    )]
    pub plaintext: bool,

    #[command(flatten)]
    pub certificates: CertificateFiles,
}

impl Security {
    /// With `--plaintext`, if `plaintext` says so.
    #[must_use]
    pub(crate) fn with_plaintext(&self, plaintext: bool) -> Self {
        Self {
            plaintext: self.plaintext || plaintext,
            ..self.clone()
        }
    }
}

/// The certificates of one side: all three files, or none.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct CertificateFiles {
    /// Encrypt; trust certificates issued by the authorities in FILE (PEM)
    #[arg(
        long,
        value_name = "FILE",
        requires_all = ["tls_cert", "tls_key"],
        help_heading = SECURITY
    )]
    pub tls_ca: Option<PathBuf>,

    /// This side's certificate, with intermediate certificates if any (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_ca", help_heading = SECURITY)]
    pub tls_cert: Option<PathBuf>,

    /// This side's private key (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_ca", help_heading = SECURITY)]
    pub tls_key: Option<PathBuf>,
}

/// An invitation, or `-` for one on standard input. It is parsed when it is used, by code whose
/// errors do not repeat it: it holds a secret.
#[derive(Clone)]
pub(crate) struct InvitationArg(String);

impl InvitationArg {
    /// The invitation; `None` if it is on standard input.
    pub(crate) fn text(&self) -> Option<&str> {
        Some(self.0.as_str()).filter(|text| *text != "-")
    }
}

impl FromStr for InvitationArg {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(Self(text.to_owned()))
    }
}

/// Without the secret.
impl fmt::Debug for InvitationArg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("InvitationArg")
    }
}
