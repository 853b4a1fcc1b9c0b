//! A proxy between the two sides that does not interpret the bytes, and cuts the connections or
//! changes a byte.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use hikkoshi_link::Address;

use crate::machine::stamp;

/// What happens to the byte with a chosen number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tamper {
    /// All connections close before it, in both directions, as if both sides had closed them.
    Cut,
    /// It arrives with another value.
    Change,
}

/// Carries bytes, counts them, and tampers once.
#[derive(Debug)]
pub(crate) struct TamperingProxy {
    tamper: Tamper,
    at: u64,
    carried: AtomicU64,
    tampered: AtomicBool,
    /// The bytes carried, for tests that search them.
    seen: Mutex<Vec<u8>>,
    streams: Mutex<Vec<UnixStream>>,
}

impl TamperingProxy {
    /// Tampers with byte number `at`, counted over all connections and both directions.
    pub(crate) fn new(tamper: Tamper, at: u64) -> Arc<Self> {
        Arc::new(Self {
            tamper,
            at,
            carried: AtomicU64::new(0),
            tampered: AtomicBool::new(false),
            seen: Mutex::default(),
            streams: Mutex::default(),
        })
    }

    /// Bytes carried so far.
    pub(crate) fn carried(&self) -> u64 {
        self.carried.load(Ordering::Acquire)
    }

    pub(crate) fn tampered(&self) -> bool {
        self.tampered.load(Ordering::Acquire)
    }

    /// How many page contents of a guest with this many pages are readable in the bytes.
    pub(crate) fn readable(&self, pages: u64) -> usize {
        let seen = self.seen.lock().unwrap();
        let word = |at: &[u8]| u64::from_le_bytes(at.try_into().unwrap());
        let is_stamp = |part: &&[u8]| {
            let (page, generation) = (word(&part[..8]), word(&part[8..16]));
            page < pages && generation > 0 && stamp(page, generation)[..64] == **part
        };
        seen.windows(64).filter(is_stamp).count()
    }

    /// The address to connect to instead of `to`.
    pub(crate) fn before(self: &Arc<Self>, to: &Address, folder: &Path) -> Address {
        let Address::Unix(to) = to.clone() else {
            panic!("unix sockets only")
        };
        let path = folder.join("proxy");
        let listener = UnixListener::bind(&path).unwrap();
        let proxy = Arc::clone(self);
        // Ends with the test's process: no further connection is made.
        thread::spawn(move || {
            for near in listener.incoming() {
                let (Ok(near), Ok(far)) = (near, UnixStream::connect(&to)) else {
                    return;
                };
                proxy.carry(&near, &far);
                proxy.carry(&far, &near);
            }
        });
        Address::Unix(path)
    }

    fn carry(self: &Arc<Self>, from: &UnixStream, to: &UnixStream) {
        let (mut from, mut to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
        let proxy = Arc::clone(self);
        proxy.streams.lock().unwrap().push(to.try_clone().unwrap());
        thread::spawn(move || {
            let mut buffer = vec![0; 16 << 10];
            while let Ok(n) = from.read(&mut buffer) {
                let bytes = &mut buffer[..n];
                if n == 0 || !proxy.pass(bytes) || to.write_all(bytes).is_err() {
                    break;
                }
            }
            let _ = to.shutdown(Shutdown::Both);
            let _ = from.shutdown(Shutdown::Both);
        });
    }

    fn pass(&self, bytes: &mut [u8]) -> bool {
        let len = bytes.len() as u64;
        let before = self.carried.fetch_add(len, Ordering::AcqRel);
        self.seen.lock().unwrap().extend_from_slice(bytes);
        if !(before..before + len).contains(&self.at) {
            return !self.tampered() || self.tamper == Tamper::Change;
        }
        self.tampered.store(true, Ordering::Release);
        match self.tamper {
            Tamper::Change => {
                bytes[usize::try_from(self.at - before).unwrap()] ^= 0x10;
                true
            }
            Tamper::Cut => {
                for stream in self.streams.lock().unwrap().iter() {
                    let _ = stream.shutdown(Shutdown::Both);
                }
                false
            }
        }
    }
}
