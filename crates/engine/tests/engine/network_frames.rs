//! Frames that arrive for the guest during the switchover: they are delivered in order, and what is
//! over the limits is counted and dropped.

use hikkoshi_engine::Mode;
use hikkoshi_engine::report::FramesAccount;

use crate::memory::{MIB, SMALL, layout};
use crate::network::{Burst, Received};
use crate::run::Setup;

/// Moves a guest for which so many frames arrive at once. The first `kept` must be delivered.
fn delivers_the_first(frames: u32, bytes: usize, kept: u32) {
    delivers_of(Burst::new(frames, bytes), frames, kept);
}

fn delivers_of(burst: Burst, frames: u32, kept: u32) {
    let layout = layout(&[(MIB, SMALL)]);
    let mut setup = Setup::with(Mode::Hybrid, &layout, &layout, true);
    let received = Received::default();
    setup.source.frames = Some(burst);
    setup.destination.frames = Some(received.clone());
    let (source, _) = setup.run().moved(true);
    let account = FramesAccount {
        kept: kept.into(),
        delivered: kept.into(),
        dropped: (frames - kept).into(),
    };
    assert_eq!(source.frames, Some(account));
    let received = received.0.lock().unwrap();
    assert_eq!(*received, (0..kept).collect::<Vec<_>>());
}

#[test]
fn all_frames_of_a_burst_are_delivered_in_order() {
    delivers_the_first(1000, 1500, 1000);
}

/// The time for which frames are forwarded is over while frames that arrived before are still to be
/// read.
#[test]
fn a_slow_host_forwards_what_has_arrived() {
    let burst = Burst::new(1000, 1500).slow_before(&[10, 20, 990]);
    delivers_of(burst, 1000, 1000);
}

#[test]
fn at_most_8192_frames_are_sent() {
    delivers_the_first(9000, 60, 8192);
}

#[test]
fn at_most_4_mib_in_frames_are_sent() {
    delivers_the_first(3000, 1514, (4 << 20) / 1514);
}
