//! Networks: packets, frames.

pub(crate) mod packet_capture;
pub(crate) mod transmitted_frames;
