//! Frames that arrive for the guest during the switchover: they are delivered in order, and what is
//! over the limits is counted and dropped.

use hikkoshi_engine::Mode;
use hikkoshi_engine::report::FramesAccount;

use crate::memory::{MIB, SMALL, layout};
use crate::network::{Burst, Received};
use crate::run::Setup;

/// Moves a guest for which a burst arrives. Of these frames the first `kept` must be delivered.
fn delivers_the_first(frames: u32, bytes: usize, kept: u32) {
    let layout = layout(&[(MIB, SMALL)]);
    let mut setup = Setup::with(Mode::Hybrid, &layout, &layout, true);
    let received = Received::default();
    setup.source.frames = Some(Burst::new(frames, bytes));
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

#[test]
fn at_most_8192_frames_are_sent() {
    delivers_the_first(9000, 60, 8192);
}

#[test]
fn at_most_4_mib_in_frames_are_sent() {
    delivers_the_first(3000, 1514, (4 << 20) / 1514);
}
