//! Addresses of this machine that are one listener's alone.
//!
//! An engine that is started again listens where the one before it did. Between the two nobody else
//! may take the port: not another test, and not the kernel for somebody who asks for any port.

use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicU8, Ordering};

/// Below those that the kernel gives away unasked (`ip_local_port_range` begins at 32768).
const PORT: u16 = 7100;

/// A loopback address that no other process of tests has, and this one not twice in its last 254.
pub fn unique_host() -> Ipv4Addr {
    static LAST: AtomicU8 = AtomicU8::new(0);
    let last = LAST.fetch_add(1, Ordering::Relaxed) % 254 + 1;
    let [.., high, low] = std::process::id().to_be_bytes();
    // 127.0.0.0/24 is everybody's.
    let (high, low) = if [high, low] == [0, 0] {
        (255, 255)
    } else {
        (high, low)
    };
    Ipv4Addr::new(127, high, low, last)
}

/// The same with a port.
pub fn unique_address() -> String {
    format!("{}:{PORT}", unique_host())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn each_is_another_one_of_this_machine() {
        let (one, other) = (unique_address(), unique_address());
        assert_ne!(one, other);
        assert!(unique_host().is_loopback());
        let listeners = [&one, &other].map(|address| TcpListener::bind(address).unwrap());
        assert!(TcpListener::bind(&one).is_err(), "taken");
        drop(listeners);
    }
}
