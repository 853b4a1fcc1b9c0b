//! Networks: packets, frames, certificates.

pub(crate) mod certificate_authority;
pub(crate) mod packet_capture;
pub(crate) mod transmitted_frames;
