//! `hikkoshi evacuate`.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{ArgGroup, Args};
use hikkoshi_engine::Mode;
use hikkoshi_link::Address;

use super::bandwidth::Bandwidth;
use super::headings::{CONNECTION, MEASUREMENT, MIGRATION, OUTPUT, SECURITY};
use super::hosts::daemon_address;
use super::journal_folder::JournalFolder;
use super::mode::RequestedMode;
use super::security::CertificateFiles;
use super::{bytes, dirty_rate, durations, guest_name, habits, mode};

#[derive(Debug, Clone, Args)]
#[command(
    override_usage = "hikkoshi evacuate [OPTIONS] --to <HOSTS> --tls-... <FILE> <GUEST|--all>"
)]
#[command(group(
    ArgGroup::new("which").args(["guests", "all"]).required(true).multiple(true)
))]
pub(crate) struct Evacuate {
    /// The guests: machines of a template, domains of --connect, or NAME=PATH of a QMP socket
    ///
    /// A name is the guest's name for the destinations' daemons, too. A machine has its socket in
    /// the run folder (machines/NAME.qmp).
    #[arg(verbatim_doc_comment, value_name = "GUEST", value_parser = parse_guest)]
    pub guests: Vec<EvacuatedGuest>,

    /// All machines of templates, and with --connect all running domains
    #[arg(long, help_heading = CONNECTION)]
    pub all: bool,

    /// The destinations, with commas: HOST or HOST:PORT of a `hikkoshi daemon` there
    ///
    /// The default of PORT is 7000. Each one admits this host's certificate for the guests
    /// (`hikkoshi daemon --admit`). The plan says which guest goes where.
    #[arg(verbatim_doc_comment,
        long,
        value_name = "HOSTS",
        required = true,
        value_delimiter = ',',
        value_parser = parse_destination,
        help_heading = CONNECTION
    )]
    pub to: Vec<Address>,

    /// The libvirt daemon of this host whose domains are moved, such as qemu:///system
    #[arg(long, value_name = "URI", help_heading = CONNECTION)]
    pub connect: Option<String>,

    /// Print the plan, and move nothing
    #[arg(long, help_heading = MIGRATION)]
    pub plan: bool,

    /// Say beforehand whether all will have moved in this time, and what would help
    #[arg(
        long,
        value_name = "TIME",
        value_parser = durations::parse_deadline,
        help_heading = MIGRATION
    )]
    pub within: Option<Duration>,

    /// Mode of all moves: auto, precopy, postcopy or hybrid
    ///
    /// auto chooses for each guest, by what it writes.
    #[arg(verbatim_doc_comment,
        long,
        value_name = "MODE",
        default_value = "auto",
        value_parser = mode::parse_requested,
        help_heading = MIGRATION
    )]
    pub mode: RequestedMode,

    /// Most moves at a time [default: as many as pays, at most 8]
    #[arg(long, value_name = "N", value_parser = parse_number, help_heading = MIGRATION)]
    pub at_once: Option<usize>,

    /// Most moves at a time to one destination [default: as many as pays]
    #[arg(long, value_name = "N", value_parser = parse_number, help_heading = MIGRATION)]
    pub at_once_to: Option<usize>,

    /// Limit for the background traffic of all moves together, such as 5Gbit a second
    ///
    /// It is divided among the moves that are under way. Pages that a guest waits for are not
    /// limited.
    #[arg(verbatim_doc_comment,
        long,
        value_name = "RATE",
        allow_hyphen_values = true,
        help_heading = MIGRATION
    )]
    pub bandwidth: Option<Bandwidth>,

    /// The same for all moves to one destination
    #[arg(
        long,
        value_name = "RATE",
        allow_hyphen_values = true,
        help_heading = MIGRATION
    )]
    pub bandwidth_to: Option<Bandwidth>,

    /// Another option of `migrate` for each guest; can be repeated
    ///
    /// With "=", as in --migrate-option=--quit-source.
    #[arg(verbatim_doc_comment,
        long = "migrate-option",
        value_name = "OPTION",
        allow_hyphen_values = true,
        help_heading = MIGRATION
    )]
    pub options: Vec<String>,

    /// The rate of the line from this host, instead of measuring the lines to the destinations
    ///
    /// Without it, each line is measured for about 1 s.
    #[arg(verbatim_doc_comment,
        long,
        value_name = "RATE",
        value_parser = bytes::parse,
        help_heading = MEASUREMENT
    )]
    pub line: Option<u64>,

    /// How long to measure each guest's writes; several are measured at a time
    #[arg(
        long,
        value_name = "N",
        default_value = "3",
        value_parser = dirty_rate::seconds,
        help_heading = MEASUREMENT
    )]
    pub seconds: Duration,

    #[command(flatten)]
    pub certificates: RequiredCertificates,

    #[command(flatten)]
    pub journals: JournalFolder,

    /// Write the plan, or the result, to FILE as one JSON object
    ///
    /// With "-" it is written to standard output, instead of the text.
    #[arg(verbatim_doc_comment, long, value_name = "FILE", help_heading = OUTPUT)]
    pub json: Option<PathBuf>,

    /// Read what the destinations have from FILE instead of asking them (for tests)
    #[arg(long, value_name = "FILE", hide = true, help_heading = MEASUREMENT)]
    pub host_facts: Option<PathBuf>,
}

/// The certificates of this host: its destinations know it by them.
#[derive(Debug, Clone, Args)]
pub(crate) struct RequiredCertificates {
    /// Trust certificates of destinations issued by the authorities in FILE (PEM)
    #[arg(long, value_name = "FILE", help_heading = SECURITY)]
    pub tls_ca: PathBuf,

    /// This host's certificate, with intermediate certificates if any (PEM)
    #[arg(long, value_name = "FILE", help_heading = SECURITY)]
    pub tls_cert: PathBuf,

    /// This host's private key (PEM)
    #[arg(long, value_name = "FILE", help_heading = SECURITY)]
    pub tls_key: PathBuf,
}

impl RequiredCertificates {
    /// As other commands have them.
    pub(crate) fn files(&self) -> CertificateFiles {
        CertificateFiles {
            tls_ca: Some(self.tls_ca.clone()),
            tls_cert: Some(self.tls_cert.clone()),
            tls_key: Some(self.tls_key.clone()),
        }
    }
}

/// A guest, as the command line names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct EvacuatedGuest {
    pub(crate) name: String,
    /// Its QMP socket, if it was given.
    pub(crate) qmp: Option<PathBuf>,
}

impl Evacuate {
    /// The words of `hikkoshi migrate` for a guest, which `guest` names, without what is different
    /// in each run.
    pub(crate) fn migrate_words(
        &self,
        guest: &[OsString],
        name: &str,
        to: &Address,
        mode: Mode,
    ) -> Vec<OsString> {
        let mut words: Vec<OsString> = vec!["migrate".into()];
        words.extend_from_slice(guest);
        words.push(to.to_string().into());
        words.extend(["--name".into(), name.into()]);
        words.extend(["--mode".into(), mode.to_string().into()]);
        let absolute = |path: &Path| std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        let certificates = &self.certificates;
        for (option, file) in [
            ("--tls-ca", &certificates.tls_ca),
            ("--tls-cert", &certificates.tls_cert),
            ("--tls-key", &certificates.tls_key),
        ] {
            words.extend([option.into(), absolute(file).into()]);
        }
        words.extend(["--journal".into(), absolute(&self.journals.path()).into()]);
        words.extend(self.options.iter().map(Into::into));
        words
    }
}

/// Parses `NAME` or `NAME=PATH`.
fn parse_guest(text: &str) -> Result<EvacuatedGuest, String> {
    let (name, qmp) = match text.split_once('=') {
        Some((_, "")) => return Err("the path of its QMP socket is missing after '='".to_owned()),
        Some((name, path)) => (name, Some(PathBuf::from(path))),
        None => (text, None),
    };
    Ok(EvacuatedGuest {
        name: guest_name::parse(name)?,
        qmp,
    })
}

/// Parses `HOST` or `HOST:PORT`, or `unix:PATH`.
fn parse_destination(text: &str) -> Result<Address, String> {
    if let Some(what) = habits::address(text) {
        return Err(format!("'{text}' {what}"));
    }
    match text.starts_with("unix:") {
        true => text.parse::<Address>().map_err(|error| error.to_string()),
        false => daemon_address(text),
    }
}

fn parse_number(text: &str) -> Result<usize, String> {
    let number = text.parse().ok().filter(|number| *number > 0);
    number.ok_or_else(|| format!("'{text}' is not a number above 0"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Args as CommandLine, Command};
    use clap::Parser;

    const CERTIFICATES: &str = "--tls-ca ca --tls-cert crt --tls-key key";

    fn evacuate(words: &str) -> Option<Evacuate> {
        let words = format!("hikkoshi evacuate {words} {CERTIFICATES}");
        match CommandLine::try_parse_from(words.split_whitespace())
            .ok()?
            .command
        {
            Command::Evacuate(evacuate) => Some(*evacuate),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn guests_and_destinations_are_named() {
        let args = evacuate("web1 db=/run/db.qmp --to a,b:7001,[::1],[::1]:8 --plan").unwrap();
        let guest = |name: &str, qmp: Option<&str>| EvacuatedGuest {
            name: name.to_owned(),
            qmp: qmp.map(PathBuf::from),
        };
        assert_eq!(
            args.guests,
            [guest("web1", None), guest("db", Some("/run/db.qmp"))]
        );
        let to: Vec<_> = args.to.iter().map(ToString::to_string).collect();
        assert_eq!(to, ["a:7000", "b:7001", "[::1]:7000", "[::1]:8"]);
        for good in ["--all --to a", "a --all --to a --within 10m"] {
            assert!(evacuate(good).is_some(), "{good}");
        }
        for bad in [
            "--to a",
            "--all",
            "../a --to b",
            "a= --to b",
            "a --to b --at-once 0",
            "a --to b --within 0s",
        ] {
            assert!(evacuate(bad).is_none(), "{bad}");
        }
    }

    #[test]
    fn each_guest_has_a_command_line_of_migrate() {
        let args = "a --to b --migrate-option=--max-downtime=50 --migrate-option=--shared-disks";
        let args = evacuate(args).unwrap();
        let guest = ["--qmp".into(), "/q".into()];
        let words = args.migrate_words(&guest, "a", &args.to[0], Mode::Precopy);
        let all = std::iter::once(OsString::from("hikkoshi")).chain(words);
        let Command::Migrate(migrate) = CommandLine::try_parse_from(all).unwrap().command else {
            panic!();
        };
        assert_eq!(migrate.name.as_deref(), Some("a"));
        let options = migrate.engine_options(&migrate.options());
        assert_eq!(options.mode, Mode::Precopy);
        assert_eq!(options.max_downtime, Duration::from_millis(50));
    }
}
