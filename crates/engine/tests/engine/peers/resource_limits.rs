//! Sources that send invalid data, too much or too little, to a real destination: it reports the
//! error, its memory is bounded, and no guest runs at the destination that must not.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

use error_reporter::Report;
use hikkoshi_engine::DestinationOptions;
use hikkoshi_handover::Outcome;
use hikkoshi_link::LinkWriter;
use hikkoshi_pages::{PAGE_SIZE, Page, PageRange};
use hikkoshi_wire::{Frame, HEADER_LEN, PageRanges, ToDestination, ToSource};

use crate::guests::TestDestination;
use crate::heap::allocated_bytes;
use crate::machine::Side;
use crate::memory::{MIB, SMALL, layout};

use super::machine;
use super::sources::{Source, receive_from, refused};

/// How much more memory one migration may use than before: each link has a buffer for the largest
/// frame, and a few messages of the largest kind may be queued.
const MAX_BYTES: usize = 48 << 20;

fn bounded(before: usize, what: &str) {
    let more = allocated_bytes().saturating_sub(before);
    assert!(more < MAX_BYTES, "{more} bytes allocated for {what}");
}

/// A frame header with a correct checksum, whatever the fields hold.
fn header(kind: u8, payload: u32, value: u64, count: u32) -> [u8; HEADER_LEN] {
    let mut header = [0; HEADER_LEN];
    header[..2].copy_from_slice(b"hk");
    header[2] = kind;
    header[4..8].copy_from_slice(&payload.to_le_bytes());
    header[8..16].copy_from_slice(&value.to_le_bytes());
    header[16..20].copy_from_slice(&count.to_le_bytes());
    let checksum = crc32c::crc32c(&header[..20]);
    header[20..].copy_from_slice(&checksum.to_le_bytes());
    header
}

#[derive(Debug, Clone, Copy)]
enum On {
    Control,
    Background,
}

impl On {
    fn of(self, source: &mut Source) -> &mut LinkWriter {
        match self {
            Self::Control => &mut source.control.1,
            Self::Background => &mut source.background.1,
        }
    }
}

/// The guest has 512 pages.
#[test]
fn excessive_sizes_and_page_numbers_out_of_range() {
    let outside = "but the guest has only 512 pages";
    for (on, bytes, expected) in [
        (
            On::Control,
            header(1, u32::MAX, 0, 0),
            "a control message of 4294967295 bytes",
        ),
        (
            On::Control,
            header(1, (1 << 20) + 1, 0, 0),
            "1 to 1048576 are possible",
        ),
        (
            On::Background,
            header(2, 257 << 12, 0, 257),
            "a pages frame for 257 pages, 1 to 256",
        ),
        (
            On::Background,
            header(2, u32::MAX, 0, u32::MAX),
            "a pages frame for 4294967295 pages",
        ),
        (On::Background, header(2, 4096, 512, 1), outside),
        (On::Background, header(2, 8192, 511, 2), outside),
        (On::Background, header(3, 0, u64::MAX, 1), outside),
        (On::Background, header(3, 0, 1, 1 << 18), outside),
        (
            On::Background,
            header(3, 0, 0, (1 << 18) + 1),
            "a zeros frame for 262145 pages",
        ),
        (
            On::Background,
            *b"GET / HTTP/1.1\r\nHost: x\r",
            "it begins with the bytes [47, 45]",
        ),
    ] {
        let bytes = bytes.to_vec();
        refused(true, expected, move |source| {
            let before = allocated_bytes();
            let _ = on.of(source).frames(&bytes);
            // Until the destination closes the link.
            while !source.control.0.is_ready(Duration::from_secs(1)).unwrap() {}
            bounded(before, expected);
        });
    }
}

/// Messages of the largest size, as fast as they can be sent.
#[test]
fn endless_messages() {
    let ranges = (0..256).map(|nth| PageRange::one(Page::new(nth * 2)));
    let ranges = PageRanges::batches(ranges).next().unwrap();
    refused(
        true,
        "the source ended the migration: enough",
        move |source| {
            let before = allocated_bytes();
            let discard = ToDestination::Discard { ranges };
            for _ in 0..400 {
                source.send(&discard);
            }
            bounded(before, "discards");
            let reason = "enough".into();
            source.send(&ToDestination::Cancel { reason });
        },
    );
    // The largest messages that are not expected.
    refused(true, "unexpected message Offer", |source| {
        let before = allocated_bytes();
        let begin = source.large_offer();
        for _ in 0..100 {
            source.send(&begin);
        }
        bounded(before, "offers");
    });
}

/// A short timeout: every source here is expected to reach it.
const DEFAULT_PEER_TIMEOUT: Duration = Duration::from_millis(800);

/// More than a correct source needs, on any machine.
const MAX_PEER_TIMEOUT: Duration = Duration::from_secs(60);

const TOO_SLOW: &str = "the peer does not answer: it hangs, or the connection is broken";

/// Runs a scripted source against a destination with the timeout `peer_timeout`; the migration must
/// fail, and the guest stays at the source.
fn waiting(peer_timeout: Duration, script: impl FnOnce(&mut Source) + Send) -> (Outcome, String) {
    let layout = layout(&[(MIB, SMALL), (MIB, SMALL)]);
    let machine = machine(&layout, &layout);
    let mut guest = TestDestination::new(&machine, 1000);
    guest.checks = false;
    let options = DestinationOptions {
        peer_timeout,
        ..DestinationOptions::default()
    };
    let result = receive_from(&mut guest, true, &options, |source, _, _| {
        script(source);
        source.last_message();
    });
    let error = result.unwrap_err();
    assert_eq!(guest.script.count("resume"), 0);
    assert_eq!(machine.runs(), Some(Side::Source));
    machine.undamaged();
    (error.outcome, Report::new(&error).to_string())
}

/// The largest frame, one byte at a time: it uses the memory of one frame, and times out.
#[test]
fn one_byte_at_a_time() {
    let (outcome, text) = waiting(DEFAULT_PEER_TIMEOUT, |source| {
        let before = allocated_bytes();
        let range = PageRange::from_len(Page::new(0), 256);
        let mut header = Frame::Pages { range }.encode().to_vec();
        header.resize(header.len() + 4096, 7);
        for (number, byte) in header.into_iter().enumerate() {
            // Until the destination closes the link.
            if source.background.1.frames(&[byte]).is_err() {
                break;
            }
            if number >= HEADER_LEN {
                bounded(before, "a frame");
            }
            thread::sleep(Duration::from_millis(1));
        }
    });
    assert_eq!(outcome, Outcome::AtSource);
    assert!(text.contains(TOO_SLOW), "{text}");
}

/// Loading the device state needs pages that never arrive: before *Commit* the only cost is the
/// timeout.
#[test]
fn requests_are_never_answered() {
    let mut peer_timeout = DEFAULT_PEER_TIMEOUT;
    loop {
        let asked = AtomicBool::new(false);
        let (outcome, text) = waiting(peer_timeout, |source| {
            source.discard(0, 512);
            source.switch(512, true);
            let (requests, _) = source.urgent.as_mut().unwrap();
            while let Ok(frame) = requests.frame() {
                assert!(matches!(frame, Frame::Request { .. }), "{frame:?}");
                asked.store(true, Ordering::Relaxed);
            }
        });
        assert_eq!(outcome, Outcome::AtSource);
        assert!(text.contains(TOO_SLOW), "{text}");
        if asked.into_inner() {
            return;
        }
        // On a busy machine a correct source may need longer than this before anything is loaded.
        assert!(peer_timeout < MAX_PEER_TIMEOUT, "no page was requested");
        peer_timeout *= 6;
    }
}

/// Every page is sent repeatedly in post-copy, with different content: the guest has the first
/// copy, and each page is counted once.
#[test]
fn pages_sent_twice() {
    let layout = layout(&[(2 * MIB, SMALL)]);
    let machine = machine(&layout, &layout);
    machine.stop(Side::Source, Duration::from_secs(20));
    let mut guest = TestDestination::new(&machine, 1000);
    guest.checks = false;
    let (switched, go): (SyncSender<()>, _) = sync_channel(1);
    guest.script.at("load_device_state", move || {
        let _ = switched.send(());
        Ok(())
    });
    let options = DestinationOptions::default();
    let account = receive_from(&mut guest, true, &options, |source, _, _| {
        let go = go;
        source.discard(0, 512);
        source.switch(512, true);
        go.recv().unwrap();
        let before = allocated_bytes();
        let all = PageRange::from_len(Page::new(0), 512);
        let send = |writer: &mut LinkWriter, range: PageRange, round: u8| {
            let content: Vec<u8> = match round {
                0 => range
                    .iter()
                    .flat_map(|page| machine.expected(page.index()))
                    .collect(),
                _ => vec![round; range.len() as usize * PAGE_SIZE],
            };
            writer.pages(range, &content).unwrap();
        };
        // All but the last page, alternately on both links.
        let most = PageRange::from_len(Page::new(0), 511);
        for round in 0..4 {
            for (nth, range) in most.chunks(7).enumerate() {
                let urgent = source.urgent.as_mut().unwrap();
                let background = &mut source.background.1;
                if round == 0 {
                    send(background, range, 0);
                    // Installed before it is sent again.
                    while source.background.0.frame().unwrap()
                        != (Frame::Ack {
                            bytes: background.sent(),
                        })
                    {}
                } else if nth % 2 == 0 {
                    send(&mut urgent.1, range, round);
                } else {
                    send(background, range, round);
                }
            }
        }
        // Zeros for every page: only missing pages are filled with them, and the last page has
        // other content at the source.
        let last = PageRange::one(Page::new(511));
        send(&mut source.background.1, last, 0);
        source
            .background
            .1
            .frame(Frame::Zeros { range: all })
            .unwrap();
        bounded(before, "pages");
        let ready: ToSource = source.control.0.control().unwrap();
        assert_eq!(ready, ToSource::Ready);
        source.send(&ToDestination::Commit);
        let mut messages = Vec::new();
        while !matches!(messages.last(), Some(ToSource::Complete { .. })) {
            messages.push(source.control.0.control().unwrap());
        }
        source.send(&ToDestination::Goodbye);
    });
    account.unwrap();
    machine.check(Side::Destination);
}
