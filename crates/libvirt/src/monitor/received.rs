//! Lines and descriptors from a session's socket.

use std::collections::VecDeque;
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

/// The longest line that a session sends: far above any command of hikkoshi.
const MAX_LINE: usize = 1 << 20;
const READ: usize = 16 << 10;
/// Descriptors that can come with one read.
const MAX_DESCRIPTORS: usize = 8;

/// What has been received and not been taken yet.
#[derive(Debug, Default)]
pub(crate) struct Received {
    bytes: VecDeque<u8>,
    descriptors: Vec<OwnedFd>,
}

impl Received {
    /// The next line, and the descriptors that have come. (A client sends a command with a
    /// descriptor alone, so they are those of the line.) `None` when the client has closed the
    /// socket.
    pub(crate) fn next(
        &mut self,
        stream: &UnixStream,
    ) -> io::Result<Option<(Vec<u8>, Vec<OwnedFd>)>> {
        loop {
            if let Some(end) = self.bytes.iter().position(|&byte| byte == b'\n') {
                let line = self.bytes.drain(..=end).collect();
                return Ok(Some((line, std::mem::take(&mut self.descriptors))));
            }
            if self.bytes.len() > MAX_LINE {
                return Err(io::ErrorKind::InvalidData.into());
            }
            if !self.read(stream)? {
                return Ok(None);
            }
        }
    }

    fn read(&mut self, stream: &UnixStream) -> io::Result<bool> {
        let mut buffer = [0; READ];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let slices = &mut [IoSliceMut::new(&mut buffer)];
        let read = loop {
            match recvmsg(stream, slices, &mut control, RecvFlags::CMSG_CLOEXEC) {
                Ok(read) => break read.bytes,
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        };
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                self.descriptors.extend(descriptors);
            }
        }
        self.bytes.extend(buffer.get(..read).unwrap_or_default());
        Ok(read > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
    use std::fs::File;
    use std::io::{IoSlice, Write};
    use std::os::fd::AsFd;

    #[test]
    fn a_line_comes_with_its_descriptor() {
        let (mut client, server) = UnixStream::pair().unwrap();
        let mut received = Received::default();
        let mut next = || received.next(&server).unwrap();
        client.write_all(b"first\nsecond\n").unwrap();
        for expected in [b"first\n".as_slice(), b"second\n"] {
            let (line, descriptors) = next().unwrap();
            assert_eq!((line.as_slice(), descriptors.len()), (expected, 0));
        }
        let file = File::open("/dev/null").unwrap();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let descriptors = [file.as_fd()];
        assert!(control.push(SendAncillaryMessage::ScmRights(&descriptors)));
        let third = [IoSlice::new(b"third\n")];
        sendmsg(&client, &third, &mut control, SendFlags::empty()).unwrap();
        let (line, descriptors) = next().unwrap();
        assert_eq!((line.as_slice(), descriptors.len()), (&b"third\n"[..], 1));
        drop(client);
        assert!(next().is_none());
    }

    #[test]
    fn an_endless_line_ends_the_session() {
        let (mut client, server) = UnixStream::pair().unwrap();
        let writer = std::thread::spawn(move || {
            let _ = client.write_all(&vec![b'x'; 2 * MAX_LINE]);
        });
        let error = Received::default().next(&server).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        drop(server);
        writer.join().unwrap();
    }
}
