//! Control messages as bytes, in the format of
//! [postcard](https://postcard.jamesmunns.com), with bounded lengths.

use serde::Serialize;
use serde::de::DeserializeOwned;
use thiserror::Error;

use crate::limits::{MAX_CONTROL, MAX_OFFER};
use crate::messages::{Subject, ToDestination, ToSource};

/// The two directions of the control link: [`ToDestination`], [`ToSource`].
pub trait ControlMessage: Serialize + DeserializeOwned + sealed::Sealed {
    /// The number of messages in this version.
    #[doc(hidden)]
    const COUNT: u32;

    /// The longest possible encoding of this message, in bytes.
    #[doc(hidden)]
    fn max_len(&self) -> usize {
        MAX_CONTROL
    }

    /// What makes the message too long, if it is, for errors.
    #[doc(hidden)]
    fn subject(&self) -> Subject {
        Subject::Other
    }
}

impl ControlMessage for ToDestination {
    const COUNT: u32 = 17;

    fn max_len(&self) -> usize {
        match self {
            Self::Offer { .. } | Self::Compare { .. } => MAX_OFFER,
            _ => MAX_CONTROL,
        }
    }

    fn subject(&self) -> Subject {
        match self {
            Self::Offer { guest, .. } | Self::Compare { guest } => guest.longest_part(),
            _ => Subject::Other,
        }
    }
}

impl ControlMessage for ToSource {
    const COUNT: u32 = 22;
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for crate::messages::ToDestination {}
    impl Sealed for crate::messages::ToSource {}
}

/// Returns the payload of a control frame with this message.
///
/// # Errors
///
/// If a name or a list in the message is longer than its type allows, or the
/// whole message is longer than [`MAX_CONTROL`], or an offer than [`MAX_OFFER`].
/// The error names the part that is too long. A reason that is too long is cut,
/// and is not an error.
pub fn encode_control<T: ControlMessage>(message: &T) -> Result<Vec<u8>, EncodeError> {
    let payload = postcard::to_allocvec(message).map_err(|_| EncodeError::OutOfBounds {
        subject: message.subject(),
    })?;
    let max = message.max_len();
    if payload.len() > max {
        return Err(EncodeError::TooLong {
            subject: message.subject(),
            bytes: payload.len(),
            max,
        });
    }
    Ok(payload)
}

/// Decodes the payload of a control frame.
///
/// Whatever lengths the payload announces, the memory for the message is less
/// than 64 times the length of the payload.
///
/// # Errors
///
/// See [`ControlError`]. The peer is faulty or has another version: close the
/// link.
pub fn decode_control<T: ControlMessage>(payload: &[u8]) -> Result<T, ControlError> {
    if payload.len() > MAX_OFFER {
        return Err(ControlError::TooLong {
            bytes: payload.len(),
        });
    }
    // serde's error for an unknown message does not say that it is unknown.
    let (number, _) = postcard::take_from_bytes::<u32>(payload)
        .map_err(|error| ControlError::from_postcard(u32::MAX, error))?;
    if number >= T::COUNT {
        return Err(ControlError::Unknown { number });
    }
    let (message, rest) = postcard::take_from_bytes::<T>(payload)
        .map_err(|error| ControlError::from_postcard(number, error))?;
    if !rest.is_empty() {
        return Err(ControlError::Trailing {
            number,
            bytes: rest.len(),
        });
    }
    Ok(message)
}

/// Why a control message could not be encoded.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum EncodeError {
    /// A name of more than 4 KiB, or a list or chunk with too many elements.
    #[error(
        "encoding {subject}: a name or a list in it is longer than the protocol allows; {}",
        .subject.advice()
    )]
    OutOfBounds {
        /// What the message describes.
        subject: Subject,
    },
    /// Each part is within its bound, but the whole message is too long.
    #[error(
        "encoding a message for the peer: it has {bytes} bytes, the limit is {max}, and the largest part is {subject}; {}",
        .subject.advice()
    )]
    TooLong {
        /// Its largest part.
        subject: Subject,
        /// The length of the message.
        bytes: usize,
        /// The limit.
        max: usize,
    },
}

/// Why a control message was refused.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ControlError {
    /// More bytes than any message can have.
    #[error(
        "reading a control message: it has {bytes} bytes, the limit is {MAX_OFFER}; the peer is faulty; close the link"
    )]
    TooLong {
        /// Its length.
        bytes: usize,
    },
    /// A message that is unknown to this version.
    #[error(
        "reading a control message: number {number} is unknown to this version; close the link, and use the same version of hikkoshi on both sides"
    )]
    Unknown {
        /// Its number.
        number: u32,
    },
    /// The payload ends before the message does.
    #[error("reading a control message: it is incomplete; the peer is faulty; close the link")]
    Truncated,
    /// The payload continues after the message.
    #[error(
        "reading control message {number}: {bytes} extra bytes follow it; the peer is faulty; close the link"
    )]
    Trailing {
        /// Its number.
        number: u32,
        /// How many bytes.
        bytes: usize,
    },
    /// A value in it is invalid.
    #[error(
        "reading control message {number}: a value is malformed, or a text, list or page range is outside the bounds of the protocol; the peer is faulty; close the link"
    )]
    Malformed {
        /// Its number.
        number: u32,
    },
}

impl ControlError {
    fn from_postcard(number: u32, error: postcard::Error) -> Self {
        match error {
            postcard::Error::DeserializeUnexpectedEnd => Self::Truncated,
            _ => Self::Malformed { number },
        }
    }
}

/// [`Frame::Control`] announces the length as a `u32`: every length must fit.
const _: () = assert!(MAX_OFFER < u32::MAX as usize);
