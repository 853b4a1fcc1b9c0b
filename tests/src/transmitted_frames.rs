//! Records the frames that a host transmits on its network devices.

use hikkoshi_lab::Namespace;
use hikkoshi_network_frames::{Captured, PacketSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// How often the thread checks whether to stop.
const CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// Records the frames that a host transmits on some of its network devices: on a tap device to the
/// guest, on the others also what the guest has sent and a bridge has passed on.
#[derive(Debug)]
pub struct TransmittedFrames {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Vec<Vec<Captured>>>,
}

impl TransmittedFrames {
    /// Starts to record.
    ///
    /// # Panics
    /// When the kernel does not allow it.
    pub fn record(host: &Namespace, devices: &[&str]) -> Self {
        let open = |device: &&str| {
            let socket = PacketSocket::open(None, device, None).unwrap();
            socket.start().unwrap();
            socket
        };
        let open_all = || devices.iter().map(open).collect::<Vec<_>>();
        let mut sockets = host.run(open_all).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let mut frames = vec![Vec::new(); sockets.len()];
            loop {
                let last = stopped.load(Ordering::Acquire);
                for (socket, frames) in sockets.iter_mut().zip(&mut frames) {
                    while let Some(frame) = socket.receive().unwrap() {
                        frames.push(frame);
                    }
                }
                if last {
                    return frames;
                }
                PacketSocket::wait(&sockets.iter().collect::<Vec<_>>(), CHECK_INTERVAL).unwrap();
            }
        });
        Self { stop, thread }
    }

    /// Stops, and returns the frames of each device, with the kernel's time for each.
    ///
    /// # Panics
    /// When the recording thread did.
    pub fn finish(self) -> Vec<Vec<Captured>> {
        self.stop.store(true, Ordering::Release);
        self.thread.join().unwrap()
    }
}
