//! A guest that its owner pauses or resumes is paused or runs afterwards, wherever it is.

use hikkoshi_engine::{CancelFlag, DestinationGuest, SourceGuest};
use hikkoshi_qemu::QemuSource;
use serde_json::json;

use crate::support::{device_state, with_each};

use super::{copy_memory, destination, load, save, source};

/// Between the preparation and the pause.
#[test]
fn a_guest_that_its_owner_pauses_after_the_preparation() {
    with_each(|program| {
        let qemu = source(program, "");
        let before = qemu.traces();
        let mut source = qemu.source();
        source.prepare_pause().unwrap();
        assert_eq!(qemu.state(), "running");
        qemu.execute("stop", json!({}));
        source.pause().unwrap();
        assert!(!source.describe().running);
        source.resume().unwrap();
        assert_eq!(qemu.state(), "paused");
        qemu.execute("cont", json!({}));
        // A migration that is cancelled before the pause.
        source.prepare_pause().unwrap();
        qemu.execute("stop", json!({}));
        source.resume().unwrap();
        assert_eq!(qemu.state(), "paused");
        qemu.execute("cont", json!({}));
        source.prepare_pause().unwrap();
        source.resume().unwrap();
        assert_eq!(qemu.state(), "running");
        source.release().unwrap();
        drop(source);
        assert_eq!(qemu.traces(), before);
    });
}

#[test]
fn a_guest_that_its_owner_paused_stays_paused_at_both_ends() {
    with_each(|program| {
        let (from, to) = (source(program, ""), destination(program, ""));
        let source = from.source();
        assert!(source.describe().running);
        drop(source);
        from.execute("stop", json!({}));
        let mut source = from.source();
        assert!(!source.describe().running);
        // It is restored after the pause and after the save.
        for saves in [false, true] {
            source.pause().unwrap();
            if saves {
                device_state(&mut source);
            }
            source.resume().unwrap();
            assert_eq!(from.state(), "paused");
            assert!(!from.is_marked());
        }
        drop(source);
        // Dropped without a decision when saved: it may run elsewhere.
        let mut source = from.source();
        source.pause().unwrap();
        device_state(&mut source);
        drop(source);
        assert_eq!(from.state(), "paused");
        let error = QemuSource::attach(&from.qmp()).unwrap_err();
        assert!(error.may_be_handed_over(), "{error}");
        from.execute("object-del", json!({ "id": "hikkoshi-paused" }));
        let mut source = from.source();
        let mut destination = to.destination();
        destination.prepare().unwrap();
        let state = save(&mut source);
        copy_memory(&source, &destination);
        load(&mut destination, state);
        destination
            .resume(source.describe().running, &CancelFlag::new())
            .unwrap();
        destination.release().unwrap();
        source.release().unwrap();
        drop((source, destination));
        assert_eq!(from.state(), "paused");
        assert!(from.is_marked(), "it has moved");
        assert_eq!(to.state(), "paused");
        to.execute("cont", json!({}));
        assert_eq!(to.state(), "running");
    });
}

#[test]
fn the_running_state_is_the_one_at_the_switchover() {
    with_each(|program| {
        let from = source(program, "");
        let mut guest = from.source();
        assert!(guest.describe().running);
        from.execute("stop", json!({}));
        guest.pause().unwrap();
        assert!(!guest.describe().running);
        guest.resume().unwrap();
        assert_ne!(from.state(), "running", "its owner had paused it");
        from.execute("cont", json!({}));
        guest.pause().unwrap();
        assert!(guest.describe().running);
        guest.resume().unwrap();
        assert_eq!(from.state(), "running");
        // In a state that the migration does not change.
        from.execute("stop", json!({}));
        guest.resume().unwrap();
        assert_eq!(from.state(), "paused");
    });
}
