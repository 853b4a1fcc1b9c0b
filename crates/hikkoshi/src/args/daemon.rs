//! `hikkoshi daemon`.

use std::path::PathBuf;

use clap::Args;
use hikkoshi_link::Address;

use super::advertised_address::AdvertisedAddress;
use super::headings::{CONNECTION, SECURITY};
use super::journal_folder::JournalFolder;
use super::security::CertificateFiles;

#[derive(Debug, Clone, Args)]
pub(crate) struct Daemon {
    /// Address to listen on: HOST:PORT or unix:PATH
    ///
    /// The default is the socket that systemd has passed (LISTEN_FDS).
    #[arg(verbatim_doc_comment, long, value_name = "ADDR", help_heading = CONNECTION)]
    pub listen: Option<Address>,

    #[command(flatten)]
    pub address: AdvertisedAddress,

    /// How many guests may be received or awaited at a time [default: 64]
    ///
    /// none: 65535. Each needs 2 open files.
    #[arg(verbatim_doc_comment,
        long,
        value_name = "N",
        value_parser = parse_max_guests,
        help_heading = CONNECTION
    )]
    pub max_guests: Option<u16>,

    /// Which certificates may send which guests, and what receives them
    ///
    /// A line of FILE is a name in the source's certificate, a name of a guest, and options of
    /// `hikkoshi invite`, as in: host1.example web* --template /etc/hikkoshi/web.template. "*" is
    /// any certificate, or the end of any name; {name} in the options is the guest's name. The
    /// first line that fits is used. The source names the guest (`migrate --name`). FILE is read
    /// for each guest.
    #[arg(verbatim_doc_comment,
        long,
        value_name = "FILE",
        requires = "tls_ca",
        help_heading = SECURITY
    )]
    pub admit: Option<PathBuf>,

    /// With --admit: how many guests of one certificate may be received or awaited at a time
    ///
    /// none: as many as --max-guests. [default: half of --max-guests]
    #[arg(verbatim_doc_comment,
        long,
        value_name = "N",
        value_parser = parse_max_guests,
        requires = "admit",
        help_heading = SECURITY
    )]
    pub max_guests_per_certificate: Option<u16>,

    #[command(flatten)]
    pub certificates: CertificateFiles,

    #[command(flatten)]
    pub journals: JournalFolder,
}

/// Parses a number of guests, or `none`: the most that can be set.
fn parse_max_guests(text: &str) -> Result<u16, String> {
    match text {
        "none" => Ok(u16::MAX),
        number => number.parse().map_err(|_| {
            format!(
                "'{text}' is not a number of guests up to {}, or none",
                u16::MAX
            )
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_daemon_can_have_as_many_guests_as_can_be_counted() {
        for (text, guests) in [
            ("1", Some(1)),
            ("none", Some(u16::MAX)),
            ("65536", None),
            ("", None),
        ] {
            assert_eq!(parse_max_guests(text).ok(), guests, "{text:?}");
        }
    }
}
