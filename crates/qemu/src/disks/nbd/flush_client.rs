//! A client of QEMU's NBD server that only flushes.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;

use thiserror::Error;

use super::framing::{u16_at, u32_at, u64_at};
use super::{FLUSH, GREETING, GREETING_LEN, OPTION_MAGIC, REQUEST, SIMPLE_REPLY};

/// Flags of the handshake, of both sides: the option protocol, and no padding.
const HANDSHAKE_FLAGS: u16 = 0b11;

/// The option that names the export and ends the negotiation.
const OPTION_EXPORT_NAME: u32 = 1;

/// A flag of an export: it can be flushed.
const CAN_FLUSH: u16 = 1 << 2;

/// A disk was not flushed.
#[derive(Debug, Error)]
pub(crate) enum FlushError {
    /// The connection failed, or was ended.
    #[error("flushing the disk: the connection to QEMU's NBD server failed")]
    Io(#[from] io::Error),
    /// The server speaks another protocol.
    #[error("flushing the disk: QEMU's NBD server sent something else than {0}")]
    Unexpected(&'static str),
    /// The disk's image reports an error.
    #[error("flushing the disk's image: {0}")]
    Refused(io::Error),
}

/// A connection to one export.
#[derive(Debug)]
pub(crate) struct FlushClient {
    socket: UnixStream,
    /// Flushes so far.
    cookie: u64,
}

impl FlushClient {
    /// Chooses the export `name` on a new connection.
    ///
    /// # Errors
    /// See [`FlushError`].
    pub(crate) fn open(mut socket: UnixStream, name: &str) -> Result<Self, FlushError> {
        let mut greeting = [0; GREETING_LEN];
        socket.read_exact(&mut greeting)?;
        let flags = u16_at(&greeting, GREETING.len());
        if !greeting.starts_with(&GREETING) || flags & HANDSHAKE_FLAGS != HANDSHAKE_FLAGS {
            return Err(FlushError::Unexpected("its greeting"));
        }
        let mut choice = u32::from(HANDSHAKE_FLAGS).to_be_bytes().to_vec();
        choice.extend(OPTION_MAGIC);
        choice.extend(OPTION_EXPORT_NAME.to_be_bytes());
        let len = u32::try_from(name.len()).map_err(io::Error::other)?;
        choice.extend(len.to_be_bytes());
        choice.extend(name.as_bytes());
        socket.write_all(&choice)?;
        // Its size, and its flags. A server without such an export closes the connection.
        let mut export = [0; 10];
        socket.read_exact(&mut export)?;
        if u16_at(&export, 8) & CAN_FLUSH == 0 {
            return Err(FlushError::Unexpected("an export that can be flushed"));
        }
        Ok(Self { socket, cookie: 0 })
    }

    /// Returns when everything is on the disk that was written before.
    ///
    /// # Errors
    /// See [`FlushError`].
    pub(crate) fn flush(&mut self) -> Result<(), FlushError> {
        self.cookie += 1;
        let mut request = REQUEST.to_be_bytes().to_vec();
        request.extend(0u16.to_be_bytes());
        request.extend(FLUSH.to_be_bytes());
        request.extend(self.cookie.to_be_bytes());
        // No offset and no length.
        request.extend([0; 12]);
        self.socket.write_all(&request)?;
        let mut reply = [0; 16];
        self.socket.read_exact(&mut reply)?;
        if (u32_at(&reply, 0), u64_at(&reply, 8)) != (SIMPLE_REPLY, self.cookie) {
            return Err(FlushError::Unexpected("the answer to a flush"));
        }
        match u32_at(&reply, 4) {
            0 => Ok(()),
            // The protocol's numbers are those of Linux.
            error => Err(FlushError::Refused(io::Error::from_raw_os_error(
                i32::try_from(error).unwrap_or(i32::MAX),
            ))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    /// A server of one export, that answers flushes with these errors.
    fn server(mut socket: UnixStream, errors: &[u32]) {
        socket
            .write_all(&[&GREETING[..], &[0, 3]].concat())
            .unwrap();
        let mut choice = [0; 4 + 16 + 4];
        socket.read_exact(&mut choice).unwrap();
        assert_eq!(choice[..4], [0, 0, 0, 3]);
        assert!(choice.ends_with(b"\0\0\0\x04vda0"), "{choice:?}");
        let mut export = 4096u64.to_be_bytes().to_vec();
        export.extend((CAN_FLUSH | 1).to_be_bytes());
        socket.write_all(&export).unwrap();
        for error in errors {
            let mut request = [0; 28];
            socket.read_exact(&mut request).unwrap();
            assert_eq!((u32_at(&request, 0), u16_at(&request, 6)), (REQUEST, FLUSH));
            let mut reply = SIMPLE_REPLY.to_be_bytes().to_vec();
            reply.extend(error.to_be_bytes());
            reply.extend(&request[8..16]);
            socket.write_all(&reply).unwrap();
        }
    }

    #[test]
    fn an_export_is_flushed_and_its_errors_are_reported() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let server = thread::spawn(move || server(theirs, &[0, 0, 28]));
        let mut client = FlushClient::open(ours, "vda0").unwrap();
        client.flush().unwrap();
        client.flush().unwrap();
        let error = client.flush().unwrap_err();
        let FlushError::Refused(error) = error else {
            panic!("{error}");
        };
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        server.join().unwrap();
        assert!(matches!(client.flush(), Err(FlushError::Io(_))));
    }

    #[test]
    fn another_server_is_refused() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        theirs.write_all(&[b'x'; GREETING_LEN]).unwrap();
        let error = FlushClient::open(ours, "vda0").unwrap_err();
        assert!(matches!(error, FlushError::Unexpected(_)), "{error}");
    }
}
