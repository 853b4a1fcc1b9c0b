//! Splits a connection into its reader and its writer.

use std::io;
use std::sync::Arc;

use hikkoshi_wire::Limits;

use crate::{LinkReader, LinkWriter, Stream};
use hikkoshi_linux::CancelFlag;

/// Splits a connection into its reader and its writer.
///
/// # Errors
/// When the socket's timeout cannot be set.
pub fn split(
    stream: &Arc<Stream>,
    limits: Limits,
    stop: &CancelFlag,
) -> io::Result<(LinkReader, LinkWriter)> {
    Ok((
        LinkReader::new(Arc::clone(stream), limits, stop.clone())?,
        LinkWriter::new(Arc::clone(stream), stop.clone())?,
    ))
}
