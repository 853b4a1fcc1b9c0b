//! Destinations that do not read, or send too much, with a real source: the source
//! reports it, in bounded memory, and resumes its guest.

use std::io::{ErrorKind, Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use error_reporter::Report;
use hikkoshi_engine::{CancelFlag, Mode, SourceOptions};
use hikkoshi_handover::Outcome;
use hikkoshi_pages::{Page, PageRange};
use hikkoshi_wire::{Frame, ToSource};

use crate::heap::allocated_bytes;
use crate::machine::Side;
use crate::memory::SMALL;

use super::destinations::{
    Destination, Ends, Migrated, apply, migrated_with, read_until, until_switch,
};

/// How much more memory one migration may use than before.
const MAX_BYTES: usize = 16 << 20;

/// Short timeouts: every destination here is expected to time out.
const DEFAULT_PEER_TIMEOUT: Duration = Duration::from_millis(400);

fn with_short_timeouts(mode: Mode) -> SourceOptions {
    SourceOptions {
        peer_timeout: DEFAULT_PEER_TIMEOUT,
        ..with_default_timeouts(mode)
    }
}

/// Default timeouts, for migrations that do not end by a timeout.
fn with_default_timeouts(mode: Mode) -> SourceOptions {
    SourceOptions {
        mode,
        links: 1,
        ..SourceOptions::default()
    }
}

/// Migrates to a destination that behaves correctly until the guest is paused. On a
/// busy machine that may take longer than the timeout: then the migration is repeated
/// with a longer one, which is passed to `script`.
fn once_paused(mode: Mode, script: impl Fn(&mut Destination<'_>, Duration) + Sync) -> Migrated {
    let mut options = with_short_timeouts(mode);
    loop {
        let peer_timeout = options.peer_timeout;
        let migrated = migrated_with(&options, &CancelFlag::new(), |destination| {
            script(destination, peer_timeout);
        });
        if migrated.2.contains(&"pause") || peer_timeout > SourceOptions::DEFAULT_PEER_TIMEOUT {
            return migrated;
        }
        options.peer_timeout *= 6;
    }
}

/// Asserts that the guest runs at the source, in its earlier state.
#[track_caller]
fn check_runs_at_source((result, machine, calls): Migrated, error: &str, paused: bool) {
    let failed = result.unwrap_err();
    assert!(Report::new(&failed).to_string().contains(error), "{failed}");
    assert_eq!(failed.outcome, Outcome::AtSource, "{failed}");
    assert_eq!(calls.contains(&"pause"), paused, "{calls:?}");
    assert_eq!(machine.runs(), Some(Side::Source));
    machine.work(100);
    machine.check(Side::Source);
}

fn accept_precopy(destination: &mut Destination<'_>) -> (Ends, Ends) {
    let mut control = destination.control();
    let host_pages = vec![SMALL, SMALL];
    control
        .1
        .control(&ToSource::Accept {
            host_pages,
            marks_holes: false,
        })
        .unwrap();
    (control, destination.background())
}

/// Reads everything, and acknowledges it while `acknowledge` returns `true`.
fn read_and_acknowledge((mut pages, mut acks): Ends, mut acknowledge: impl FnMut() -> bool) {
    let mut buffer = vec![0; 1 << 20];
    while let Ok(frame) = pages.frame() {
        if pages.payload(&mut buffer[..frame.payload_len()]).is_err() {
            return;
        }
        if acknowledge() {
            let bytes = pages.received();
            let _ = acks.frame(Frame::Ack { bytes });
        }
    }
}

const TOO_SLOW: &str = "the peer does not answer: it hangs, or the connection is broken";

#[test]
fn nothing_is_acknowledged() {
    let migrated = migrated_with(
        &with_short_timeouts(Mode::Precopy),
        &CancelFlag::new(),
        |destination| {
            let (_control, background) = accept_precopy(destination);
            read_and_acknowledge(background, || false);
        },
    );
    check_runs_at_source(migrated, TOO_SLOW, false);
}

#[test]
fn stale_pages_are_never_dropped() {
    let migrated = migrated_with(
        &with_short_timeouts(Mode::Postcopy),
        &CancelFlag::new(),
        |destination| {
            let (mut control, background) = accept_precopy(destination);
            apply(background);
            let _urgent = destination.link(hikkoshi_wire::Role::Urgent);
            read_until(&mut control, "DiscardEnd");
            while control.0.control::<hikkoshi_wire::ToDestination>().is_ok() {}
        },
    );
    check_runs_at_source(migrated, TOO_SLOW, false);
}

#[test]
fn half_an_acknowledgement() {
    let migrated = migrated_with(
        &with_short_timeouts(Mode::Precopy),
        &CancelFlag::new(),
        |destination| {
            let (_control, background) = accept_precopy(destination);
            let half = &Frame::Ack { bytes: 1 }.encode()[..7];
            (&mut background.1.stream()).write_all(half).unwrap();
            read_and_acknowledge(background, || false);
        },
    );
    check_runs_at_source(migrated, TOO_SLOW, false);
}

#[test]
fn nothing_is_read() {
    let migrated = migrated_with(
        &with_short_timeouts(Mode::Precopy),
        &CancelFlag::new(),
        |destination| {
            let _links = accept_precopy(destination);
            while destination.machine.runs().is_some() && !destination.is_disconnected() {
                thread::sleep(Duration::from_millis(10));
            }
        },
    );
    check_runs_at_source(migrated, TOO_SLOW, false);
}

/// Until the pause the destination behaves correctly.
#[test]
fn nothing_is_acknowledged_after_the_pause() {
    let migrated = once_paused(Mode::Precopy, |destination, _| {
        let (mut control, background) = accept_precopy(destination);
        let machine = Arc::clone(&destination.machine);
        thread::spawn(move || read_and_acknowledge(background, || machine.runs().is_some()));
        // The source may time out before the destination has sent anything.
        while control.0.control::<hikkoshi_wire::ToDestination>().is_ok() {}
    });
    check_runs_at_source(migrated, TOO_SLOW, true);
}

/// There is always some progress, but no end: the deadline resumes the guest.
#[test]
fn the_device_state_is_read_slowly() {
    for mode in [Mode::Precopy, Mode::Postcopy] {
        let migrated = once_paused(mode, |destination, peer_timeout| {
            let (mut control, background) = accept_precopy(destination);
            apply(background);
            if mode == Mode::Postcopy {
                let _urgent = destination.link(hikkoshi_wire::Role::Urgent);
                read_until(&mut control, "DiscardEnd");
                // The source may have timed out meanwhile.
                let _ = control.1.control(&ToSource::Discarded);
            }
            let mut little = [0; 4096];
            loop {
                match (&mut control.1.stream()).read(&mut little) {
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                    // Only a small part of it within the timeout.
                    Ok(1..) => thread::sleep(peer_timeout / 20),
                    Ok(0) | Err(_) => return,
                }
            }
        });
        check_runs_at_source(migrated, TOO_SLOW, true);
    }
}

/// A repeated acknowledgement acknowledges nothing, and does not delay the timeout.
#[test]
fn a_repeated_acknowledgement_is_none() {
    let options = SourceOptions {
        peer_timeout: Duration::from_secs(3600),
        ..with_short_timeouts(Mode::Precopy)
    };
    let migrated = migrated_with(&options, &CancelFlag::new(), |destination| {
        let (_control, (mut pages, mut acks)) = accept_precopy(destination);
        let mut buffer = vec![0; 1 << 20];
        let frame = pages.frame().unwrap();
        pages.payload(&mut buffer[..frame.payload_len()]).unwrap();
        let bytes = pages.received();
        // The rest is read: otherwise both sides might wait for each other to read.
        thread::spawn(move || {
            while let Ok(frame) = pages.frame() {
                if pages.payload(&mut buffer[..frame.payload_len()]).is_err() {
                    return;
                }
            }
        });
        let many = Frame::Ack { bytes }.encode().repeat(4000);
        while acks.frames(&many).is_ok() {}
    });
    check_runs_at_source(migrated, "on a background link, ", false);
}

/// Endless requests, whose answers are not read: the requests wait in the
/// destination's memory.
#[test]
fn endless_requests() {
    let cancel = CancelFlag::new();
    let enough = cancel.clone();
    let sent = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&sent);
    // The guest is paused until this test has checked enough.
    let options = with_default_timeouts(Mode::Postcopy);
    let migrated = migrated_with(&options, &cancel, move |destination| {
        let (_control, _background, (_answers, mut requests)) = until_switch(destination);
        let before = allocated_bytes();
        let total = Arc::clone(&counted);
        thread::spawn(move || {
            let all: Vec<u8> = (0..8)
                .map(|nth| PageRange::from_len(Page::new(nth * 256), 256))
                .flat_map(|range| Frame::Request { range }.encode())
                .collect();
            while requests.frames(&all).is_ok() {
                total.fetch_add(8, Ordering::Relaxed);
            }
        });
        // Until it has begun to, and the source accepts no more.
        let mut last = 0;
        loop {
            let now = counted.load(Ordering::Relaxed);
            if now == last && now > 64 || destination.is_disconnected() {
                break;
            }
            last = now;
            thread::sleep(Duration::from_millis(100));
        }
        let more = allocated_bytes().saturating_sub(before);
        assert!(
            more < MAX_BYTES,
            "{more} bytes allocated for {last} requests"
        );
        enough.cancel();
    });
    assert!(sent.load(Ordering::Relaxed) > 64);
    check_runs_at_source(migrated, "cancelled", true);
}

/// Endless messages that the source does not expect.
#[test]
fn endless_messages() {
    let cancel = CancelFlag::new();
    let migrated = migrated_with(
        &with_default_timeouts(Mode::Postcopy),
        &cancel,
        |destination| {
            let (mut control, _background, _urgent) = destination.accept();
            let before = allocated_bytes();
            let reason = "x".repeat(4096);
            let refuse = ToSource::Refuse { reason };
            while control.1.control(&refuse).is_ok() {}
            let more = allocated_bytes().saturating_sub(before);
            assert!(more < MAX_BYTES, "{more} bytes allocated");
        },
    );
    let error = "waiting for the destination to drop stale pages: the peer broke the protocol: \
                 unexpected message Refuse";
    check_runs_at_source(migrated, error, false);
}

/// Control characters in the destination's messages are not printed.
#[test]
fn a_reason_with_control_characters() {
    let migrated = migrated_with(
        &with_short_timeouts(Mode::Hybrid),
        &CancelFlag::new(),
        |destination| {
            let mut control = destination.control();
            let reason = "no\x1b[2J\x1b]0;owned\x07\nthe guest has moved\u{9b}\u{202e}".into();
            control.1.control(&ToSource::Refuse { reason }).unwrap();
        },
    );
    check_runs_at_source(
        migrated,
        "refuses the guest: no?[2J?]0;owned? the guest has moved??",
        false,
    );
}
