//! `hikkoshi dashboard`.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use clap::Args;
use hikkoshi_dashboard::AllowedHost;

use super::headings::{CONNECTION, SECURITY};

#[derive(Debug, Clone, Args)]
pub(crate) struct Dashboard {
    /// Address to listen on: IP:PORT or localhost:PORT; with port 0 a free one
    ///
    /// The address of the page is printed to standard output.
    #[arg(verbatim_doc_comment,
        long,
        value_name = "ADDR",
        default_value = "127.0.0.1:8077",
        value_parser = address,
        help_heading = CONNECTION
    )]
    pub listen: SocketAddr,

    /// Directory that `migrate` and `receive` were given with --journal
    ///
    /// The migrations are in its subdirectory "status".
    /// [default: /run/hikkoshi; for users other than root, $XDG_RUNTIME_DIR/hikkoshi]
    #[arg(verbatim_doc_comment, long, value_name = "DIR", help_heading = CONNECTION)]
    pub journal: Option<PathBuf>,

    /// Listen on an address that other hosts can reach
    ///
    /// Nothing is encrypted, and there is no password: all who can connect can see the migrations
    /// of this user. A tunnel (ssh -L) or a reverse proxy is better.
    #[arg(verbatim_doc_comment, long, help_heading = SECURITY)]
    pub allow_remote: bool,

    /// Another name of this server that browsers may use, such as monitor.example
    ///
    /// Requests to other names than localhost and the address that is listened on are refused,
    /// because a page of another site could have made them (DNS rebinding). Can be given several
    /// times.
    #[arg(verbatim_doc_comment, long, value_name = "NAME", help_heading = SECURITY)]
    pub allow_host: Vec<AllowedHost>,
}

/// Parses an address to listen on.
fn address(text: &str) -> Result<SocketAddr, String> {
    let parsed = text.parse().ok().or_else(|| {
        let port = text.strip_prefix("localhost:")?.parse().ok()?;
        Some(SocketAddr::from((Ipv4Addr::LOCALHOST, port)))
    });
    parsed.ok_or_else(|| format!("'{text}' is not IP:PORT, such as 127.0.0.1:8077 or [::1]:8077"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_have_an_ip_address_and_a_port() {
        for (text, parsed) in [
            ("127.0.0.1:0", "127.0.0.1:0"),
            ("[::1]:80", "[::1]:80"),
            ("localhost:8077", "127.0.0.1:8077"),
        ] {
            assert_eq!(address(text).unwrap().to_string(), parsed);
        }
        for bad in [
            "",
            "8077",
            "127.0.0.1",
            "localhost",
            "host.example:80",
            "localhost:70000",
        ] {
            assert!(address(bad).is_err(), "{bad}");
        }
    }
}
