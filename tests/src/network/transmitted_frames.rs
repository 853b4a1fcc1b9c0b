//! Records the frames that a host transmits on its network devices.

use hikkoshi_lab::Namespace;
use hikkoshi_network_frames::{BufferMib, Captured, PacketSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How often the thread checks whether to stop.
const CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// Records the frames that a host transmits on some of its network devices: on a tap device to the
/// guest, on the others also what the guest has sent and a bridge has passed on.
#[derive(Debug)]
pub struct TransmittedFrames {
    stop: Arc<AtomicBool>,
    /// Of each device.
    frames: Arc<Mutex<Vec<Vec<Captured>>>>,
    thread: JoinHandle<()>,
}

impl TransmittedFrames {
    /// Starts to record.
    ///
    /// # Panics
    /// When the kernel does not allow it.
    pub fn record(host: &Namespace, devices: &[&str]) -> Self {
        let open = |device: &&str| {
            let socket = PacketSocket::open(None, device, None, BufferMib(16)).unwrap();
            socket.start().unwrap();
            socket
        };
        let open_all = || devices.iter().map(open).collect::<Vec<_>>();
        let mut sockets = host.run(open_all).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let frames = Arc::new(Mutex::new(vec![Vec::new(); sockets.len()]));
        let recorded = Arc::clone(&frames);
        let thread = std::thread::spawn(move || {
            loop {
                let last = stopped.load(Ordering::Acquire);
                for (number, socket) in sockets.iter_mut().enumerate() {
                    while let Some(frame) = socket.receive().unwrap() {
                        recorded.lock().unwrap()[number].push(frame);
                    }
                }
                if last {
                    return;
                }
                PacketSocket::wait(&sockets.iter().collect::<Vec<_>>(), CHECK_INTERVAL).unwrap();
            }
        });
        Self {
            stop,
            frames,
            thread,
        }
    }

    /// Waits until the device with this number has transmitted such a frame, at most `limit`.
    /// Returns whether it has.
    ///
    /// # Panics
    /// When the recording thread did.
    pub fn wait(&self, device: usize, limit: Duration, wanted: impl Fn(&[u8]) -> bool) -> bool {
        let until = Instant::now() + limit;
        loop {
            let seen = |frames: &Vec<Captured>| frames.iter().any(|f| wanted(&f.frame.bytes));
            if seen(&self.frames.lock().unwrap()[device]) {
                return true;
            }
            if Instant::now() > until {
                return false;
            }
            std::thread::sleep(CHECK_INTERVAL);
        }
    }

    /// Stops, and returns the frames of each device, with the kernel's time for each.
    ///
    /// # Panics
    /// When the recording thread did.
    pub fn finish(self) -> Vec<Vec<Captured>> {
        self.stop.store(true, Ordering::Release);
        self.thread.join().unwrap();
        std::mem::take(&mut *self.frames.lock().unwrap())
    }
}
