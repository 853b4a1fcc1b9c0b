//! The socket through which QEMU's device state goes, one end of it in QEMU.
//!
//! QEMU writes (and reads) with its own threads whenever it likes; a thread of
//! ours is at the other end all the time, so that QEMU never waits for us.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use hikkoshi_wire::MAX_DEVICE_STATE;

use crate::qmp::{Client, QmpError};

/// The name of our descriptor inside QEMU.
pub(crate) const NAME: &str = "hikkoshi";

/// Bytes read at once.
const CHUNK: usize = 256 << 10;

/// Gives QEMU one end of a new socket, by the name of [`NAME`].
pub(crate) fn open(client: &mut Client) -> Result<UnixStream, QmpError> {
    let (ours, theirs) = UnixStream::pair().map_err(|source| QmpError::Socket {
        doing: "the device state's socket".to_owned(),
        source,
    })?;
    client.send_fd(NAME, theirs.as_fd())?;
    // QEMU has its own copy; with ours closed, QEMU's end is the only one.
    Ok(ours)
}

/// Takes in the device state that QEMU saves. Dropping it breaks the stream,
/// so that QEMU's save fails.
#[derive(Debug)]
pub(crate) struct Intake {
    socket: UnixStream,
    chunks: Receiver<io::Result<Vec<u8>>>,
    thread: Option<JoinHandle<()>>,
}

impl Intake {
    /// Starts to read.
    pub(crate) fn start(socket: UnixStream) -> io::Result<Self> {
        let (sender, chunks) = channel();
        let reader = socket.try_clone()?;
        let thread = std::thread::Builder::new()
            .name("device-save".to_owned())
            .spawn(move || take_in(reader, &sender))?;
        Ok(Self {
            socket,
            chunks,
            thread: Some(thread),
        })
    }

    /// The next piece; `None` at the end.
    pub(crate) fn next(&self) -> Option<io::Result<Vec<u8>>> {
        self.chunks.recv().ok()
    }
}

/// Reads until the end. What has not been asked for waits in the channel, at
/// most [`MAX_DEVICE_STATE`] bytes in all.
fn take_in(mut socket: UnixStream, chunks: &Sender<io::Result<Vec<u8>>>) {
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
                        format!("it is longer than {MAX_DEVICE_STATE} bytes"),
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
            // QEMU's save fails then.
            let _ = socket.shutdown(Shutdown::Both);
            return;
        }
    }
}

impl Drop for Intake {
    fn drop(&mut self) {
        let _ = self.socket.shutdown(Shutdown::Both);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Feeds QEMU the device state that it loads. Dropping it breaks the stream.
#[derive(Debug)]
pub(crate) struct Feed {
    socket: UnixStream,
    thread: Option<JoinHandle<()>>,
}

impl Feed {
    /// Starts to write.
    pub(crate) fn start(socket: UnixStream, state: Vec<u8>) -> io::Result<Self> {
        let mut writer = socket.try_clone()?;
        let thread = std::thread::Builder::new()
            .name("device-load".to_owned())
            .spawn(move || {
                if let Err(error) = writer.write_all(&state) {
                    // QEMU says itself what it did not like.
                    tracing::debug!(%error, "feeding the device state to QEMU");
                }
                // A state that ends too early must fail, not wait for more.
                let _ = writer.shutdown(Shutdown::Write);
            })?;
        Ok(Self {
            socket,
            thread: Some(thread),
        })
    }
}

impl Drop for Feed {
    fn drop(&mut self) {
        let _ = self.socket.shutdown(Shutdown::Both);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_comes_out_and_ends() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let intake = Intake::start(ours).unwrap();
        let sent: Vec<u8> = (0..3_000_000u32).map(|i| i.to_le_bytes()[0]).collect();
        // More than a socket holds: the thread reads although nobody asks yet.
        theirs.write_all(&sent).unwrap();
        drop(theirs);
        let mut got = Vec::new();
        while let Some(chunk) = intake.next() {
            got.extend(chunk.unwrap());
        }
        assert!(got == sent);
    }

    #[test]
    fn dropping_the_intake_breaks_the_stream() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        theirs.write_all(b"half of it").unwrap();
        drop(Intake::start(ours).unwrap());
        let error = theirs.write_all(&[0; 1 << 20]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
    }

    #[test]
    fn an_endless_state_is_cut_off() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let intake = Intake::start(ours).unwrap();
        let writer = std::thread::spawn(move || {
            let piece = vec![7; 1 << 20];
            (0..=MAX_DEVICE_STATE >> 20)
                .try_for_each(|_| theirs.write_all(&piece))
                .is_err()
        });
        let mut total = 0;
        let error = loop {
            match intake.next().unwrap() {
                Ok(chunk) => total += chunk.len() as u64,
                Err(error) => break error,
            }
        };
        assert!(total <= MAX_DEVICE_STATE);
        assert_eq!(error.kind(), io::ErrorKind::FileTooLarge);
        drop(intake);
        let _ = writer.join().unwrap();
    }

    #[test]
    fn a_feed_ends_the_stream_and_never_hangs() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let feed = Feed::start(ours, b"state".to_vec()).unwrap();
        let mut got = Vec::new();
        theirs.read_to_end(&mut got).unwrap();
        assert_eq!(got, b"state");
        drop(feed);
        // Nobody reads this one.
        let (ours, _theirs) = UnixStream::pair().unwrap();
        drop(Feed::start(ours, vec![0; 8 << 20]).unwrap());
    }
}
