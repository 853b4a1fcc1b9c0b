//! Network frames that arrive for the guest during the switchover.
//!
//! A guest that is paused does not read what arrives for it, and what is left at
//! the source is lost: each client would wait until it sends again. So the source
//! keeps these frames and sends them on a link of their own, and the destination
//! delivers them once the guest runs there and has been announced to its networks.
//!
//! ```text
//! source                                   destination
//!   starts the capture, pauses the guest
//!   Switch, Ready                ◀────────▶
//!   Commit                       ───────────▶  resumes the guest
//!   Frames: what the guest did not get ─────▶    keeps them until it runs,
//!   Frames: what still arrives here    ─────▶    delivers them
//!   FramesEnd                    ───────────▶
//!                                ◀───────────  FramesDelivered
//! ```
//!
//! Nothing is sent before *Commit*: a guest that resumes at the source finds its frames
//! where they were. All of it is best effort. A failure here is logged and never
//! affects the migration; a link for frames that is lost is not replaced.

use std::time::{Duration, Instant};

use hikkoshi_wire::NetworkFrame;

use crate::guest_error::GuestError;

/// A frame that the guest did not get.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeptFrame {
    /// The address of the network card that it is for.
    pub card: [u8; 6],
    /// The frame.
    pub frame: NetworkFrame,
}

/// The source's networks: sees the frames that arrive for the guest.
///
/// Order of the calls: [`prepare`] once or several times, [`start`], [`handed_over`], then
/// [`next`] any number of times.
///
/// [`prepare`]: FrameCapture::prepare
/// [`start`]: FrameCapture::start
/// [`handed_over`]: FrameCapture::handed_over
/// [`next`]: FrameCapture::next
pub trait FrameCapture: Send {
    /// The guest's network cards whose frames cannot be kept, each with the reason; for people.
    fn without(&self) -> &[String] {
        &[]
    }

    /// The guest, which runs, is to be paused soon, if nothing comes between: keeps frames as far
    /// as there is room, in case that it has not received those yet when it is paused. May wait a
    /// moment for a guest that is behind.
    fn prepare(&mut self) -> Result<(), GuestError> {
        Ok(())
    }

    /// Starts to keep frames. Called shortly before the guest is paused, so it must be quick.
    fn start(&mut self) -> Result<(), GuestError>;

    /// The guest was paused at `paused`, and never resumes here: from now on
    /// [`next`](Self::next) returns the frames that it did not get.
    fn handed_over(&mut self, paused: Instant) -> Result<(), GuestError>;

    /// The next frame, in the order of arrival; `None` after `wait` without one.
    fn next(&mut self, wait: Duration) -> Result<Option<KeptFrame>, GuestError>;

    /// Frames that could not be kept so far.
    fn dropped(&mut self) -> u64;
}

/// The destination's networks: delivers frames to the guest.
pub trait FrameDelivery: Send {
    /// Notes what the network delivers here by itself. Called about ten times a second, also before
    /// the guest runs.
    fn observe(&mut self) {}

    /// Delivers a frame to the guest, which runs, unless the network has delivered it here as well:
    /// frames for all stations reach both hosts.
    fn deliver(&mut self, frame: &KeptFrame) -> Result<(), GuestError>;
}
