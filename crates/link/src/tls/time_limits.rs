//! The time limits of a handshake, and the calls that they limit.

use std::io::{self, Write};
use std::time::Instant;

use hikkoshi_linux::CancelFlag;

use crate::tls::secure_error::SecureError;

/// The time limits of a handshake.
#[derive(Debug, Clone, Copy)]
pub struct TimeLimits<'a> {
    /// When the handshake times out.
    pub deadline: Instant,
    /// Setting this ends the handshake early.
    pub stop: &'a CancelFlag,
}

impl TimeLimits<'_> {
    /// Repeats `call` until it succeeds or fails for another reason than the socket's timeout.
    pub(crate) fn retry(self, mut call: impl FnMut() -> io::Result<usize>) -> io::Result<usize> {
        loop {
            if Instant::now() > self.deadline || self.stop.is_cancelled() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            match call() {
                Err(e)
                    if matches!(
                        e.kind(),
                        io::ErrorKind::WouldBlock
                            | io::ErrorKind::TimedOut
                            | io::ErrorKind::Interrupted
                    ) => {}
                other => return other,
            }
        }
    }

    pub(super) fn write_all(
        self,
        socket: &mut impl Write,
        mut bytes: &[u8],
    ) -> Result<(), SecureError> {
        while !bytes.is_empty() {
            match self.retry(|| socket.write(bytes)).map_err(or_timed_out)? {
                0 => return Err(io::Error::from(io::ErrorKind::WriteZero).into()),
                written => bytes = bytes.get(written..).unwrap_or_default(),
            }
        }
        Ok(())
    }
}

pub(super) fn or_timed_out(error: io::Error) -> SecureError {
    match error.kind() {
        io::ErrorKind::TimedOut => SecureError::TimedOut,
        _ => SecureError::Io(error),
    }
}
