//! A peer's address: `HOST:PORT` or `unix:PATH`.

use std::fmt;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::str::FromStr;

use thiserror::Error;

/// The address of a destination.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    /// TCP: a host (name or address) and a port, as written.
    Tcp(String),
    /// A unix socket.
    Unix(PathBuf),
}

/// A text that is not an address.
#[derive(Debug, Error)]
#[error("'{0}' is not an address; write HOST:PORT, [IPV6]:PORT or unix:PATH")]
pub struct AddressError(String);

/// A host name that cannot be resolved.
#[derive(Debug, Error)]
#[error(
    "cannot look up the host '{host}' (is the name right, and does this machine's name service \
     know it? 'getent hosts {host}' asks it)"
)]
pub struct ResolveError {
    host: String,
    #[source]
    cause: std::io::Error,
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        if let Some(path) = text.strip_prefix("unix:") {
            if path.is_empty() {
                return Err(AddressError(text.into()));
            }
            return Ok(Self::Unix(path.into()));
        }
        match text.rsplit_once(':') {
            Some((host, port)) if !host.is_empty() && port.parse::<u16>().is_ok() => {
                Ok(Self::Tcp(text.into()))
            }
            _ => Err(AddressError(text.into())),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(text) => f.write_str(text),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

impl Address {
    /// The socket addresses behind a TCP address; none for a unix socket.
    ///
    /// # Errors
    /// When the name cannot be resolved, or has no address.
    pub fn resolve(&self) -> Result<Vec<SocketAddr>, ResolveError> {
        let Self::Tcp(text) = self else {
            return Ok(Vec::new());
        };
        let wrap = |cause| ResolveError {
            host: self.host().unwrap_or(text).to_owned(),
            cause,
        };
        let found: Vec<_> = text.to_socket_addrs().map_err(wrap)?.collect();
        if found.is_empty() {
            return Err(wrap(std::io::ErrorKind::NotFound.into()));
        }
        Ok(found)
    }

    /// The host name or IP address, without brackets; `None` for a unix socket.
    pub fn host(&self) -> Option<&str> {
        match self {
            Self::Tcp(text) => text
                .rsplit_once(':')
                .map(|(host, _)| host.trim_start_matches('[').trim_end_matches(']')),
            Self::Unix(_) => None,
        }
    }

    /// Whether all data sent to it stays on this machine.
    ///
    /// # Errors
    /// When the name cannot be resolved.
    pub fn is_local(&self) -> Result<bool, ResolveError> {
        Ok(self.resolve()?.iter().all(|a| a.ip().is_loopback()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use error_reporter::Report;

    #[test]
    fn displayed_addresses_parse() {
        for text in [
            "10.0.0.1:7000",
            "[::1]:7000",
            "host.example:1",
            "unix:/run/a",
        ] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn other_text_is_refused() {
        for text in ["", "host", ":70", "host:", "host:70000", "unix:"] {
            let error = text.parse::<Address>().unwrap_err().to_string();
            assert!(error.contains("HOST:PORT"), "{error}");
        }
    }

    #[test]
    fn the_error_names_an_unknown_host() {
        // Too long for a host name: the resolver sends no query.
        let host = format!("{}.invalid", "a".repeat(64));
        let address: Address = format!("{host}:7000").parse().unwrap();
        let error = Report::new(address.resolve().unwrap_err()).to_string();
        let message = format!("cannot look up the host '{host}' (is the name right, ");
        assert!(error.starts_with(&message), "{error}");
        assert!(
            error.contains(&format!("'getent hosts {host}' asks it): ")),
            "{error}"
        );
    }

    #[test]
    fn loopback_is_local() {
        assert!(
            "127.0.0.1:1"
                .parse::<Address>()
                .unwrap()
                .is_local()
                .unwrap()
        );
        assert!("[::1]:1".parse::<Address>().unwrap().is_local().unwrap());
        assert!("unix:/x".parse::<Address>().unwrap().is_local().unwrap());
        assert!(!"0.0.0.0:1".parse::<Address>().unwrap().is_local().unwrap());
        assert!(!"10.1.2.3:1".parse::<Address>().unwrap().is_local().unwrap());
    }
}
