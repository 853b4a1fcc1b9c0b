//! The dirty log of the guest's memory while QEMU's process and the guest write.

use hikkoshi_engine::SourceGuest;
use serde_json::json;

use crate::support::{device_state, eventually, with_each};

use super::source;

#[test]
fn the_dirty_log_sees_qemus_writes_and_is_removed() {
    with_each(|program| {
        let from = source(program, "-S");
        let before = from.traces();
        let mut guest = from.source();
        let log = guest.start_dirty_log().unwrap();
        assert!(guest.start_dirty_log().is_err());
        let all = guest.ram().layout().all();
        log.take(all, &mut |_| {}).unwrap();
        assert_eq!(log.count(all).unwrap(), 0);
        assert_eq!(from.descriptors("userfaultfd"), 1);
        // Saving and resuming do not affect it. Loading a part of memory is a write of
        // QEMU itself.
        guest.pause().unwrap();
        device_state(&mut guest);
        guest.resume().unwrap();
        guest.release().unwrap();
        guest.release().unwrap();
        drop(log);
        drop(guest);
        assert_eq!(from.traces(), before);
    });
}

#[test]
fn the_dirty_log_sees_the_guests_writes() {
    with_each(|program| {
        // The firmware starts when the log has been started. It would also write after a reset,
        // but a reset while it still runs can stop the guest for good (`internal-error`), without
        // any log: under KVM with QEMU 10.0, 10 of 20 resets did so 150 ms after QEMU's start.
        let from = source(program, "-S");
        let before = from.traces();
        let mut guest = from.source();
        let log = guest.start_dirty_log().unwrap();
        let all = guest.ram().layout().all();
        let mut dirty = 0;
        log.take(all, &mut |run| dirty += run.len()).unwrap();
        assert_eq!(dirty, 0, "the guest has not run yet");
        from.execute("cont", json!({}));
        eventually("a write of the firmware", || {
            log.take(all, &mut |run| dirty += run.len()).unwrap();
            dirty > 0
        });
        drop(log);
        drop(guest);
        assert_eq!(from.traces(), before);
        assert_eq!(from.state(), "running", "QEMU said: {}", from.errors());
    });
}
