//! The bytes on a link after the hello: frames, and control messages in them.

mod control_codec;
mod fields;
mod frame;

pub use control_codec::{
    ControlError, ControlMessage, EncodeError, decode_control, encode_control,
};
pub(crate) use fields::{field, put};
pub use frame::{
    CompressionMethod, DecodeError, Frame, HEADER_LEN, MAX_DISK_BYTES, MAX_PAGES_PER_FRAME,
    MAX_PAGES_PER_REQUEST, MAX_PAGES_PER_ZEROS,
};
