//! Asks a destination whether a guest could move there. Nothing moves, and the destination waits
//! for a source afterwards as before.

use std::sync::Arc;
use std::time::{Duration, Instant};

use hikkoshi_link::{HandshakeError, LinkError, Remote, hello, open, split};
use hikkoshi_linux::CancelFlag;
use hikkoshi_wire::{
    Limits, MAX_OBSTACLES, MAX_WARNINGS, MigrationId, OfferedGuest, Role, ToDestination, ToSource,
};

use crate::obstacle::DestinationObstacle;
use crate::source::error::SourceFailure;
use crate::source::migrate::random;

/// How long the destination may take to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

const DOING: &str = "asking the destination whether the guest could move there";

/// What the destination answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Comparison {
    /// The protocol version that both sides support.
    pub version: u16,
    /// Why the destination would refuse the guest.
    pub obstacles: Vec<DestinationObstacle>,
    /// What differs there, although the guest is not refused for it; for people.
    pub warnings: Vec<String>,
}

/// Asks the destination at `remote` whether it would accept this guest.
///
/// # Errors
/// If it cannot be reached, is not authentic, has no common protocol version, or does not answer.
pub fn compare(
    remote: &Remote,
    guest: OfferedGuest,
    cancel: &CancelFlag,
) -> Result<Comparison, SourceFailure> {
    let connect = |cause| SourceFailure::Connect {
        address: remote.address.to_string(),
        cause,
    };
    let id = random().map_err(|error| connect(HandshakeError::Io(error)))?;
    let hello = hello(Role::Control, MigrationId::from_bytes(id));
    let (stream, agreed) = open(remote, &hello, cancel).map_err(connect)?;
    let stream = Arc::new(stream);
    // No page travels.
    let limits = Limits { pages: 0 };
    let (mut reader, mut control) = split(&stream, limits, cancel)
        .map_err(|error| SourceFailure::link(DOING)(LinkError::Io(error)))?;
    control.set_progress_timeout(Some(ANSWER_TIMEOUT));
    reader.set_deadline(Some(Instant::now() + ANSWER_TIMEOUT));
    let question = ToDestination::Compare {
        guest: Box::new(guest),
    };
    control
        .control(&question)
        .map_err(SourceFailure::link(DOING))?;
    let (mut obstacles, mut warnings) = (Vec::new(), Vec::new());
    loop {
        match reader.control().map_err(SourceFailure::link(DOING))? {
            ToSource::Obstacle {
                reason,
                postcopy_only,
            } if obstacles.len() < MAX_OBSTACLES => obstacles.push(DestinationObstacle {
                reason,
                postcopy_only,
            }),
            ToSource::Warning { what } if warnings.len() < MAX_WARNINGS => warnings.push(what),
            ToSource::Compared { .. } => break,
            other => return Err(SourceFailure::unexpected(DOING, &other)),
        }
    }
    Ok(Comparison {
        version: agreed.version,
        obstacles,
        warnings,
    })
}
