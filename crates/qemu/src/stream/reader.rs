//! Reads the device state that QEMU saves.

use std::io::{self, Read};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use hikkoshi_engine::Cancel;
use hikkoshi_wire::MAX_DEVICE_STATE;

use super::{ReadUntil, SMALL_BUFFER};

/// The most bytes for one read.
const CHUNK: usize = 256 << 10;

/// The longest wait for a chunk without a check of the cancel flag.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Reads the device state that QEMU saves. Dropping it closes the stream, so that
/// QEMU's save fails.
#[derive(Debug)]
pub(crate) struct DeviceStateReader {
    socket: UnixStream,
    chunks: Receiver<io::Result<Vec<u8>>>,
    /// Makes the thread read the rest.
    finish: Sender<()>,
    /// Whether QEMU waits in the middle of writing.
    writer_waits: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl DeviceStateReader {
    /// Starts reading.
    pub(crate) fn start(socket: UnixStream, until: ReadUntil) -> io::Result<Self> {
        let (sender, chunks) = channel();
        let (finish, finishing) = channel();
        let writer_waits = Arc::new(AtomicBool::new(false));
        let (mut reader, waits) = (socket.try_clone()?, Arc::clone(&writer_waits));
        let thread = std::thread::Builder::new()
            .name("device-save".to_owned())
            .spawn(move || {
                if until == ReadUntil::Description && read_devices(&mut reader, &sender) {
                    waits.store(true, Ordering::Release);
                    // No more chunks come.
                    drop(sender);
                    if finishing.recv().is_ok() {
                        // The rest is only the description. But QEMU has to finish writing.
                        let _ = io::copy(&mut reader, &mut io::sink());
                    }
                } else {
                    read_all(&mut reader, &sender);
                }
            })?;
        Ok(Self {
            socket,
            chunks,
            finish,
            writer_waits,
            thread: Some(thread),
        })
    }

    /// Whether QEMU waits in the middle of writing. Valid when there is no next chunk.
    pub(crate) fn is_writer_waiting(&self) -> bool {
        self.writer_waits.load(Ordering::Acquire)
    }

    /// Lets QEMU write the rest.
    pub(crate) fn finish(&self) {
        // If the thread has ended, it has read everything.
        let _ = self.finish.send(());
    }

    /// The next chunk; `Some(None)` at the end. `None` once `give_up` is set.
    pub(crate) fn next_chunk(&self, give_up: &Cancel) -> Option<Option<io::Result<Vec<u8>>>> {
        loop {
            match self.chunks.recv_timeout(POLL_INTERVAL) {
                Ok(piece) => return Some(Some(piece)),
                Err(RecvTimeoutError::Disconnected) => return Some(None),
                Err(RecvTimeoutError::Timeout) if give_up.is_cancelled() => return None,
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }
}

/// Reads to the end. Chunks wait in the channel until they are taken, at most
/// [`MAX_DEVICE_STATE`] bytes in total.
fn read_all(socket: &mut UnixStream, chunks: &Sender<io::Result<Vec<u8>>>) {
    let mut total = 0u64;
    loop {
        let mut chunk = vec![0; CHUNK];
        let piece = match socket.read(&mut chunk) {
            Ok(0) => return,
            Ok(read) => {
                total += read as u64;
                chunk.truncate(read);
                if total > MAX_DEVICE_STATE {
                    Err(io::Error::new(
                        io::ErrorKind::FileTooLarge,
                        format!("the device state is longer than {MAX_DEVICE_STATE} bytes"),
                    ))
                } else {
                    Ok(chunk)
                }
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => Err(error),
        };
        let failed = piece.is_err();
        if chunks.send(piece).is_err() || failed {
            // This makes QEMU's save fail.
            let _ = socket.shutdown(Shutdown::Both);
            return;
        }
    }
}

/// An empty description: the section's type (`QEMU_VM_VMDESCRIPTION`), its length, and
/// JSON.
const EMPTY_DESCRIPTION: [u8; 7] = *b"\x06\0\0\0\x02{}";

/// The length of the byte pattern that marks the description's beginning.
const MARK_BYTES: usize = 8;

/// The offset of the description: after the end mark (`QEMU_VM_EOF`, 0) come its
/// section's type (6), a length of less than 16 MiB, and a JSON object. If other bytes
/// matched by chance, the state would be too short, and loading would fail.
fn find_description(bytes: &[u8]) -> Option<usize> {
    let is_mark = |b: &[u8]| b[..3] == [0, 6, 0] && b[6..] == *b"{\"";
    let at = bytes.windows(MARK_BYTES).position(is_mark)?;
    Some(at + 1)
}

/// Reads the devices' state up to its description. `false` if the stream has no
/// description or is too long, or if the reader was dropped.
fn read_devices(socket: &mut UnixStream, chunks: &Sender<io::Result<Vec<u8>>>) -> bool {
    let mut pending = Vec::new();
    let mut total = 0;
    loop {
        let mut chunk = [0; SMALL_BUFFER];
        match socket.read(&mut chunk) {
            Ok(read @ 1..) if total <= MAX_DEVICE_STATE => {
                total += read as u64;
                pending.extend_from_slice(&chunk[..read]);
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            // The end, a failure, or too much: the caller reads on and finds out.
            _ => {
                let _ = chunks.send(Ok(pending));
                return false;
            }
        }
        if let Some(at) = find_description(&pending) {
            pending.truncate(at);
            pending.extend(EMPTY_DESCRIPTION);
            return chunks.send(Ok(pending)).is_ok();
        }
        // A part of the mark may have come.
        let rest = pending.split_off(pending.len().saturating_sub(MARK_BYTES - 1));
        if chunks
            .send(Ok(std::mem::replace(&mut pending, rest)))
            .is_err()
        {
            return false;
        }
    }
}

impl Drop for DeviceStateReader {
    fn drop(&mut self) {
        let _ = self.socket.shutdown(Shutdown::Both);
        // The thread may be waiting for this.
        self.finish = channel().0;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stream::shrink_send_buffer;
    use std::io::Write;

    #[test]
    fn everything_is_read_to_the_end() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let reader = DeviceStateReader::start(ours, ReadUntil::End).unwrap();
        let sent: Vec<u8> = (0..3_000_000u32).map(|i| i.to_le_bytes()[0]).collect();
        // More than a socket holds: the thread reads before any chunk is taken.
        theirs.write_all(&sent).unwrap();
        drop(theirs);
        let mut got = Vec::new();
        while let Some(chunk) = reader.next_chunk(&Cancel::new()).unwrap() {
            got.extend(chunk.unwrap());
        }
        assert!(got == sent);
    }

    /// A device state as QEMU writes it: devices, the end mark, a description.
    fn described(devices: usize) -> (Vec<u8>, Vec<u8>) {
        // Bytes that resemble the mark.
        let mut devices: Vec<u8> = b"\x00\x06\x00\x00\x01{{\x00\x06\x00"
            .iter()
            .copied()
            .cycle()
            .take(devices)
            .collect();
        devices.push(0);
        let words = format!("{{\"page_size\": 4096{}}}", " ".repeat(50_000));
        let mut all = devices.clone();
        all.push(6);
        all.extend(u32::try_from(words.len()).unwrap().to_be_bytes());
        all.extend(words.as_bytes());
        (devices, all)
    }

    fn take_all(reader: &DeviceStateReader) -> Vec<u8> {
        std::iter::from_fn(|| reader.next_chunk(&Cancel::new()).unwrap())
            .flat_map(|piece| piece.unwrap())
            .collect()
    }

    #[test]
    fn the_writer_waits_in_the_middle_of_the_description() {
        // The mark is at different offsets in a read.
        for devices in (300_000..300_000 + SMALL_BUFFER)
            .step_by(509)
            .chain([0, 1, 7])
        {
            for finish in [true, false] {
                let (ours, mut theirs) = UnixStream::pair().unwrap();
                shrink_send_buffer(&theirs).unwrap();
                let (devices, all) = described(devices);
                let writer = std::thread::spawn(move || theirs.write_all(&all));
                let reader = DeviceStateReader::start(ours, ReadUntil::Description).unwrap();
                let got = take_all(&reader);
                assert!(reader.is_writer_waiting());
                assert!(got[..devices.len()] == devices);
                assert_eq!(got[devices.len()..], EMPTY_DESCRIPTION);
                assert!(!writer.is_finished());
                if finish {
                    reader.finish();
                    writer.join().unwrap().unwrap();
                } else {
                    drop(reader);
                    let kind = writer.join().unwrap().unwrap_err().kind();
                    // The end of writing, or what comes right after it: our end is closed with
                    // unread bytes in it.
                    let ends = [io::ErrorKind::BrokenPipe, io::ErrorKind::ConnectionReset];
                    assert!(ends.contains(&kind), "{kind}");
                }
            }
        }
    }

    #[test]
    fn a_state_without_a_description_is_read_to_its_end() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let (devices, _) = described(100_000);
        let sent = devices.clone();
        let writer = std::thread::spawn(move || theirs.write_all(&sent));
        let reader = DeviceStateReader::start(ours, ReadUntil::Description).unwrap();
        assert!(take_all(&reader) == devices);
        assert!(!reader.is_writer_waiting());
        writer.join().unwrap().unwrap();
        reader.finish();
    }

    #[test]
    fn dropping_the_reader_closes_the_stream() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        theirs.write_all(b"half of it").unwrap();
        drop(DeviceStateReader::start(ours, ReadUntil::End).unwrap());
        let error = theirs.write_all(&[0; 1 << 20]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
    }

    #[test]
    fn waiting_for_a_slow_writer_can_be_cancelled() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        theirs.write_all(b"half of it").unwrap();
        let reader = DeviceStateReader::start(ours, ReadUntil::End).unwrap();
        let give_up = Cancel::new();
        let piece = reader.next_chunk(&give_up).unwrap().unwrap().unwrap();
        assert_eq!(piece, b"half of it");
        let when = give_up.clone();
        std::thread::spawn(move || when.cancel());
        assert!(reader.next_chunk(&give_up).is_none());
        // Chunks that have arrived can still be taken.
        theirs.write_all(b"the rest").unwrap();
        drop(theirs);
        assert!(take_all(&reader) == b"the rest");
    }

    #[test]
    fn a_state_that_is_too_long_is_an_error() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let reader = DeviceStateReader::start(ours, ReadUntil::End).unwrap();
        let writer = std::thread::spawn(move || {
            let piece = vec![7; 1 << 20];
            (0..=MAX_DEVICE_STATE >> 20)
                .try_for_each(|_| theirs.write_all(&piece))
                .is_err()
        });
        let mut total = 0;
        let error = loop {
            match reader.next_chunk(&Cancel::new()).unwrap().unwrap() {
                Ok(chunk) => total += chunk.len() as u64,
                Err(error) => break error,
            }
        };
        assert!(total <= MAX_DEVICE_STATE);
        assert_eq!(error.kind(), io::ErrorKind::FileTooLarge);
        drop(reader);
        let _ = writer.join().unwrap();
    }
}
