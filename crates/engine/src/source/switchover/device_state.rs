//! Sends the device state in messages, as the guest's adapter produces it.

use std::io::{self, Write};

use error_reporter::Report;
use hikkoshi_linux::CancelFlag;
use hikkoshi_wire::{DeviceStateDigest, MAX_DEVICE_CHUNK, ToDestination};

use crate::guest::SourceGuest;
use crate::source::error::SourceFailure;
use crate::source::session::SourceSession;

/// Sends the device state; returns its length and checksum.
pub(crate) fn send_device_state(
    guest: &mut dyn SourceGuest,
    session: &mut SourceSession,
    give_up: &CancelFlag,
) -> Result<DeviceStateDigest, SourceFailure> {
    let mut sink = StateSink {
        session,
        digest: DeviceStateDigest::new(),
        chunk: Vec::with_capacity(MAX_DEVICE_CHUNK),
        failure: None,
    };
    let saved = guest.save_device_state(&mut sink, give_up);
    let saved = saved.map_err(SourceFailure::Guest);
    // The rest of an incomplete state is not sent.
    let sent = saved.and_then(|()| sink.flush().map_err(SourceFailure::Ram));
    if let Some(failure) = sink.failure {
        return Err(failure);
    }
    sent?;
    Ok(sink.digest)
}

/// Splits the device state into messages.
struct StateSink<'a> {
    session: &'a mut SourceSession,
    digest: DeviceStateDigest,
    chunk: Vec<u8>,
    /// The link's failure, which an [`io::Error`] cannot contain.
    failure: Option<SourceFailure>,
}

impl Write for StateSink<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let room = MAX_DEVICE_CHUNK - self.chunk.len();
        let taken = bytes.len().min(room);
        self.chunk.extend_from_slice(&bytes[..taken]);
        if self.chunk.len() == MAX_DEVICE_CHUNK {
            self.flush()?;
        }
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.chunk.is_empty() {
            return Ok(());
        }
        self.digest.update(&self.chunk).map_err(io::Error::other)?;
        let bytes = std::mem::take(&mut self.chunk);
        self.session
            .send(
                &ToDestination::DeviceStateChunk { bytes },
                "sending the device state",
            )
            .map_err(|failure| {
                let text = io::Error::other(Report::new(&failure).to_string());
                self.failure = Some(failure);
                text
            })
    }
}
