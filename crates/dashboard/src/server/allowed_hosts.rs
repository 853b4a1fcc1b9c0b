//! Which names of this server requests may use.
//!
//! A page of another site that a browser shows can have its own name resolve to 127.0.0.1 (DNS
//! rebinding), and then counts as the same origin as this server. Its requests have that other name
//! in `Host`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use hyper::header::HOST;
use hyper::http::uri::Authority;
use hyper::{HeaderMap, Uri};

/// A name that `Host` may have, without a port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AllowedHost(String);

/// It is not the name of a host.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is not a host name or an IP address (without a port, such as monitor.example)")]
pub struct InvalidHost(String);

impl FromStr for AllowedHost {
    type Err = InvalidHost;

    fn from_str(text: &str) -> Result<Self, InvalidHost> {
        let without_brackets = text.strip_prefix('[').and_then(|it| it.strip_suffix(']'));
        if let Ok(address) = without_brackets.unwrap_or(text).parse::<Ipv6Addr>() {
            return Ok(Self(format!("[{address}]")));
        }
        let is_part_of_name = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
        if text.is_empty() || !text.bytes().all(is_part_of_name) {
            return Err(InvalidHost(text.to_owned()));
        }
        Ok(Self(text.to_ascii_lowercase()))
    }
}

/// The host of a request: in the request line, or in `Host`. `None`: there is none, or several.
fn requested(uri: &Uri, headers: &HeaderMap) -> Option<Authority> {
    let mut hosts = headers.get_all(HOST).iter();
    let header: Authority = hosts.next()?.to_str().ok()?.parse().ok()?;
    if hosts.next().is_some() {
        return None;
    }
    Some(uri.authority().cloned().unwrap_or(header))
}

/// Whether a request names this server. `local` is the IP address that it was sent to, if there is
/// one. Ports are not compared: the end of a tunnel has another one.
pub(super) fn is_allowed(
    uri: &Uri,
    headers: &HeaderMap,
    local: Option<IpAddr>,
    allowed: &[AllowedHost],
) -> bool {
    let Some(authority) = requested(uri, headers) else {
        return false;
    };
    if authority.as_str().contains('@') {
        return false;
    }
    let host = authority.host().to_ascii_lowercase();
    let without_brackets = host.strip_prefix('[').and_then(|it| it.strip_suffix(']'));
    let loopback = [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()];
    let address = without_brackets.unwrap_or(&host).parse::<IpAddr>();
    address.is_ok_and(|address| loopback.contains(&address) || Some(address) == local)
        || host == "localhost"
        || allowed.iter().any(|allowed| allowed.0 == host)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allows(hosts: &[&str], local: &str, allowed: &[&str]) -> bool {
        let mut headers = HeaderMap::new();
        for host in hosts {
            headers.append(HOST, host.parse().unwrap());
        }
        let allowed: Vec<_> = allowed.iter().map(|host| host.parse().unwrap()).collect();
        let local = local.parse().ok();
        is_allowed(&Uri::from_static("/"), &headers, local, &allowed)
    }

    #[test]
    fn only_names_of_this_server_are_allowed() {
        for host in [
            "localhost",
            "LocalHost:9000",
            "127.0.0.1:1",
            "[::1]:80",
            "[::1]",
            "10.0.0.7:8000",
        ] {
            assert!(allows(&[host], "10.0.0.7", &[]), "{host}");
        }
        for host in [
            "example.com",
            "localhost.example.com",
            "127.0.0.2",
            "10.0.0.8",
            "user@localhost",
            "localhost@example.com",
            "localhost, example.com",
            "",
            "127.0.0.1.example.com:80",
        ] {
            assert!(!allows(&[host], "10.0.0.7", &[]), "{host}");
        }
        // A unix socket, at the end of a tunnel.
        assert!(allows(&["localhost:8077"], "none", &[]));
        assert!(!allows(&["10.0.0.7:8077"], "none", &[]));
        assert!(!allows(&[], "127.0.0.1", &[]));
        assert!(!allows(&["localhost", "localhost"], "127.0.0.1", &[]));
        let names = ["monitor.Example", "fd00::1"];
        for host in ["Monitor.example:443", "[fd00::1]:443"] {
            assert!(allows(&[host], "127.0.0.1", &names), "{host}");
        }
    }

    #[test]
    fn the_host_in_the_request_line_counts() {
        let mut headers = HeaderMap::new();
        headers.append(HOST, "localhost".parse().unwrap());
        let uri = Uri::from_static("http://example.com/metrics");
        let local = Some(Ipv4Addr::LOCALHOST.into());
        assert!(!is_allowed(&uri, &headers, local, &[]));
    }

    #[test]
    fn an_allowed_host_is_a_name_only() {
        for bad in ["", "a:80", "a/b", "http://a", "a b", "u@a", "*", "[::1]:80"] {
            assert!(bad.parse::<AllowedHost>().is_err(), "{bad}");
        }
    }
}
