//! Other hosts that a command asks, by ssh or by a certificate.

use std::ffi::{OsStr, OsString};
use std::str::FromStr;

use clap::Args;
use hikkoshi_link::Address;

use super::headings::{CONNECTION, SSH};
use super::security::CertificateFiles;
use super::ssh::{Words, parse_host};

/// The port of a `hikkoshi daemon` that is not named: that of its systemd socket.
const PORT: u16 = 7000;

#[derive(Debug, Clone, Default, Args)]
pub(crate) struct HostArgs {
    /// Ask another host, by ssh; with --tls-ca, its `hikkoshi daemon`; can be repeated
    ///
    /// By ssh: HOST or USER@HOST, where hikkoshi is installed. With --tls-ca: HOST or HOST:PORT of
    /// a `hikkoshi daemon --admit`, which answers if a line of that file has a name of this side's
    /// certificate. PORT is 7000 if it is not given.
    #[arg(verbatim_doc_comment,
        long = "host",
        value_name = "HOST",
        value_parser = parse_host,
        help_heading = CONNECTION
    )]
    pub hosts: Vec<String>,

    /// Use this command instead of 'ssh -o BatchMode=yes', such as 'ssh -p 2222'
    ///
    /// It is called with HOST and one more argument, a command line for the shell of HOST. Words
    /// are separated by spaces; ' and " group words.
    #[arg(verbatim_doc_comment,
        long,
        value_name = "COMMAND",
        requires = "hosts",
        conflicts_with = "tls_ca",
        help_heading = SSH
    )]
    pub rsh: Option<Words>,

    /// hikkoshi on HOST, such as 'sudo -n hikkoshi' [default: hikkoshi]
    ///
    /// Words are separated as in --rsh. They are quoted for the shell of HOST.
    #[arg(verbatim_doc_comment,
        long,
        value_name = "COMMAND",
        requires = "hosts",
        conflicts_with = "tls_ca",
        help_heading = SSH
    )]
    pub remote_hikkoshi: Option<Words>,

    /// --journal that hikkoshi on HOST was given
    #[arg(
        long,
        value_name = "DIR",
        requires = "hosts",
        conflicts_with = "tls_ca",
        help_heading = SSH
    )]
    pub remote_journal: Option<String>,

    #[command(flatten)]
    pub certificates: CertificateFiles,
}

impl HostArgs {
    /// These options as words of another command.
    pub(crate) fn words(&self) -> Vec<OsString> {
        let mut words = Vec::new();
        let mut add = |option: &str, value: &OsStr| {
            let mut word = OsString::from(option);
            word.push("=");
            word.push(value);
            words.push(word);
        };
        for host in &self.hosts {
            add("--host", host.as_ref());
        }
        for (option, command) in [
            ("--rsh", &self.rsh),
            ("--remote-hikkoshi", &self.remote_hikkoshi),
        ] {
            if let Some(command) = command {
                add(option, command.to_string().as_ref());
            }
        }
        if let Some(folder) = &self.remote_journal {
            add("--remote-journal", folder.as_ref());
        }
        for (option, file) in [
            ("--tls-ca", &self.certificates.tls_ca),
            ("--tls-cert", &self.certificates.tls_cert),
            ("--tls-key", &self.certificates.tls_key),
        ] {
            if let Some(file) = file {
                add(option, file.as_ref());
            }
        }
        words
    }
}

/// The address of the `hikkoshi daemon` that is named: HOST or HOST:PORT.
pub(crate) fn daemon_address(host: &str) -> Result<Address, String> {
    let has_port = match host.rsplit_once(':') {
        // A colon within brackets is one of an IPv6 address.
        Some((_, port)) => !port.contains(']'),
        None => false,
    };
    let text = match has_port {
        true => host.to_owned(),
        false => format!("{host}:{PORT}"),
    };
    match Address::from_str(&text) {
        Ok(Address::Unix(_)) | Err(_) => Err(format!(
            "'{host}' is not HOST or HOST:PORT of a 'hikkoshi daemon' (without --tls-ca, hosts are \
             asked by ssh)"
        )),
        Ok(address) => Ok(address),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_daemon_has_the_port_of_its_unit_by_default() {
        let of = |host: &str| daemon_address(host).map(|address| address.to_string());
        for (host, address) in [
            ("vmhost2", "vmhost2:7000"),
            ("vmhost2:7001", "vmhost2:7001"),
            ("10.0.0.2", "10.0.0.2:7000"),
            ("[fd00::2]", "[fd00::2]:7000"),
            ("[fd00::2]:7001", "[fd00::2]:7001"),
        ] {
            assert_eq!(of(host).as_deref(), Ok(address));
        }
        for host in ["unix:/run/d", "h:port", ":7000"] {
            let why = of(host).unwrap_err();
            assert!(why.contains("--tls-ca"), "{host}: {why}");
        }
    }
}
