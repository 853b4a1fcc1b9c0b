//! Captures packets, and searches them for the guest's memory.

use hikkoshi_lab::Namespace;
use rustix::net::{AddressFamily, Protocol, RecvFlags, SocketType, recv, socket, sockopt};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// Every protocol, in network byte order (`ETH_P_ALL`, `linux/if_ether.h`).
const ALL: u32 = 3 << 8;

/// Number of consecutive steps between filling words that identify a page; they do not occur by
/// chance.
const ENOUGH: usize = 8;

/// Captures every packet in a namespace, and searches it for the guest's memory.
#[derive(Debug)]
pub struct PacketCapture {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Captured>,
}

/// The result of a capture.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Captured {
    /// Bytes of all packets, including headers.
    pub bytes: u64,
    /// Packets that contain the filling of a page.
    pub pages: u64,
}

impl PacketCapture {
    /// Starts to capture.
    ///
    /// # Panics
    /// When the kernel does not allow it.
    pub fn start(host: &Namespace) -> Self {
        let open = || {
            let all = NonZeroU32::new(ALL).map(Protocol::from_raw);
            let tap = socket(AddressFamily::PACKET, SocketType::RAW, all).unwrap();
            sockopt::set_socket_timeout(
                &tap,
                sockopt::Timeout::Recv,
                Some(Duration::from_millis(50)),
            )
            .unwrap();
            sockopt::set_socket_recv_buffer_size_force(&tap, 64 << 20).unwrap();
            tap
        };
        let tap = host.run(open).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let mut captured = Captured::default();
            // Larger than any packet, including segments that the card would split.
            let mut packet = vec![0; 256 << 10];
            loop {
                match recv(&tap, &mut *packet, RecvFlags::empty()) {
                    Ok((len, _)) => {
                        captured.bytes += len as u64;
                        captured.pages += u64::from(shows_a_page(&packet[..len]));
                    }
                    Err(_) if stopped.load(Ordering::Acquire) => return captured,
                    Err(_) => {}
                }
            }
        });
        Self { stop, thread }
    }

    /// Stops, and returns the result.
    ///
    /// # Panics
    /// When the capturing thread did.
    pub fn finish(self) -> Captured {
        self.stop.store(true, Ordering::Release);
        self.thread.join().unwrap()
    }
}

/// Whether the filling of a page (`guest/checked-pages/src/page.rs`) occurs at any offset:
/// little-endian words, each larger than the one before by the same odd step. It is seen if it has
/// at least `2 * ENOUGH` words: only the first of `ENOUGH` words is tried, at each of its bytes.
fn shows_a_page(packet: &[u8]) -> bool {
    let word = |at: usize| {
        let bytes = packet.get(at..at + 8)?;
        Some(u64::from_le_bytes(bytes.try_into().ok()?))
    };
    let step = |at: usize| Some(word(at + 8)?.wrapping_sub(word(at)?));
    let blocks = (0..packet.len()).step_by(8 * ENOUGH);
    blocks.flat_map(|block| block..block + 8).any(|at| {
        step(at).is_some_and(|first| {
            first % 2 == 1 && (1..ENOUGH).all(|nth| step(at + 8 * nth) == Some(first))
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filling_is_found_at_any_offset() {
        let filling: Vec<u8> = (0..40_u64)
            .flat_map(|n| (77 + n.wrapping_mul(0x9e37_79b9_7f4a_7c15)).to_le_bytes())
            .collect();
        for before in 0..130 {
            let mut packet = vec![5; before];
            packet.extend_from_slice(&filling[..8 * 2 * ENOUGH]);
            assert!(shows_a_page(&packet), "{before}");
        }
        for nothing in [&[][..], &[0; 4096], &filling[..40]] {
            assert!(!shows_a_page(nothing));
        }
    }
}
