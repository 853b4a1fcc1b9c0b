//! Addresses of this machine that no other listener uses.
//!
//! A restarted engine listens at the address of the previous one. In between, the port must not be
//! taken, neither by another test nor by a program for which the kernel chooses a port.

use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicU8, Ordering};

/// Below the ports that the kernel chooses (`ip_local_port_range` starts at 32768).
const PORT: u16 = 7100;

/// A loopback address that no other test process uses, and this one only after 254 others.
pub fn unique_host() -> Ipv4Addr {
    static LAST: AtomicU8 = AtomicU8::new(0);
    let last = LAST.fetch_add(1, Ordering::Relaxed) % 254 + 1;
    let [.., high, low] = std::process::id().to_be_bytes();
    // 127.0.0.0/24 is used by other programs.
    let (high, low) = if [high, low] == [0, 0] {
        (255, 255)
    } else {
        (high, low)
    };
    Ipv4Addr::new(127, high, low, last)
}

/// A loopback address with a port that no other test process uses.
pub fn unique_address() -> String {
    format!("{}:{PORT}", unique_host())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn addresses_are_different_and_local() {
        let (one, other) = (unique_address(), unique_address());
        assert_ne!(one, other);
        assert!(unique_host().is_loopback());
        let listeners = [&one, &other].map(|address| TcpListener::bind(address).unwrap());
        assert!(TcpListener::bind(&one).is_err(), "taken");
        drop(listeners);
    }
}
