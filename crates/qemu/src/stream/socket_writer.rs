//! Writes the device state that QEMU loads.

use error_reporter::Report;
use rustix::io::Errno;
use rustix::net::SendFlags;
use std::io::{self, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::thread::JoinHandle;

/// Writes the device state that QEMU loads. Dropping it closes the stream.
#[derive(Debug)]
pub(crate) struct DeviceStateWriter {
    socket: UnixStream,
    thread: Option<JoinHandle<()>>,
}

impl DeviceStateWriter {
    /// Starts writing. Most states fit into the socket's buffer, and need no thread.
    pub(crate) fn start(socket: UnixStream, mut state: Vec<u8>) -> io::Result<Self> {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        let written = match rustix::net::send(&socket, &state, flags) {
            Ok(written) => written,
            Err(Errno::AGAIN) => 0,
            Err(error) => {
                // QEMU reports itself what it rejected.
                tracing::debug!(error = %Report::new(&error), "writing the device state to QEMU");
                state.len()
            }
        };
        if written >= state.len() {
            // A truncated state must fail and not wait for more bytes.
            let _ = socket.shutdown(Shutdown::Write);
            let thread = None;
            return Ok(Self { socket, thread });
        }
        state.drain(..written);
        let mut writer = socket.try_clone()?;
        let thread = std::thread::Builder::new()
            .name("device-load".to_owned())
            .spawn(move || {
                if let Err(error) = writer.write_all(&state) {
                    tracing::debug!(error = %Report::new(&error), "writing the device state to QEMU");
                }
                let _ = writer.shutdown(Shutdown::Write);
            })?;
        Ok(Self {
            socket,
            thread: Some(thread),
        })
    }
}

impl Drop for DeviceStateWriter {
    fn drop(&mut self) {
        let _ = self.socket.shutdown(Shutdown::Both);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    #[test]
    fn the_stream_ends_and_dropping_does_not_hang() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let writer = DeviceStateWriter::start(ours, b"state".to_vec()).unwrap();
        let mut got = Vec::new();
        theirs.read_to_end(&mut got).unwrap();
        assert_eq!(got, b"state");
        drop(writer);
        // This one is not read.
        let (ours, _theirs) = UnixStream::pair().unwrap();
        drop(DeviceStateWriter::start(ours, vec![0; 8 << 20]).unwrap());
    }
}
