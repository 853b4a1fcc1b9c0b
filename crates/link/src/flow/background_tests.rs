//! Over a real connection, whose other end the test reads.

use super::*;
use std::net::TcpListener;

use hikkoshi_pages::{PAGE_SIZE, Page};
use hikkoshi_wire::{CompressionMethod, Limits};

use crate::Stream;
use crate::flow::urgent_activity::RECENT;

/// Both ends of a link: a sender that always compresses, and what receives.
fn link() -> (BackgroundSender, LinkReader) {
    limited_link(&Bandwidth::unlimited())
}

fn limited_link(bandwidth: &Bandwidth) -> (BackgroundSender, LinkReader) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string().parse().unwrap();
    let stop = CancelFlag::new();
    let source = Arc::new(Stream::connect(&address, false, &stop).unwrap());
    let destination = Arc::new(Stream::tcp(listener.accept().unwrap().0).unwrap());
    let limits = Limits { pages: 64 };
    let mut sender = BackgroundSender::new(
        LinkReader::new(Arc::clone(&source), limits, stop.clone()).unwrap(),
        LinkWriter::new(source, stop.clone()).unwrap(),
        bandwidth,
    );
    let method = Compression::Always(CompressionMethod::Zstd);
    sender.set_compression(method, &Arc::new(CompressionCounters::default()));
    (sender, LinkReader::new(destination, limits, stop).unwrap())
}

#[test]
fn nothing_is_compressed_while_the_guest_waits() {
    let (mut sender, mut receiver) = link();
    let urgent_activity = UrgentActivity::new();
    sender.yield_to_urgent(urgent_activity.clone(), 1);
    let stop = CancelFlag::new();
    let mut send = |page: u64| {
        let range = PageRange::new(Page::new(page), Page::new(page + 4));
        let content = vec![7; 4 * PAGE_SIZE];
        // What a pusher does for a piece.
        thread::sleep(SAMPLE_INTERVAL);
        sender.make_room(content.len() as u64, &stop).unwrap();
        sender.pages(range, &content, &stop).unwrap();
        sender.flush(&stop).unwrap();
        let frame = receiver.frame().unwrap();
        receiver.payload(&mut vec![0; frame.payload_len()]).unwrap();
        frame
    };
    assert!(matches!(send(0), Frame::Compressed { .. }));
    let answering = urgent_activity.begin();
    assert!(matches!(send(4), Frame::Pages { .. }));
    assert!(matches!(send(8), Frame::Pages { .. }));
    // It may ask for the next page soon.
    let answered = Instant::now();
    drop(answering);
    let frame = send(12);
    // A slow machine proves nothing here.
    if answered.elapsed() < RECENT {
        assert!(matches!(frame, Frame::Pages { .. }));
    }
    thread::sleep(2 * RECENT);
    assert!(matches!(send(16), Frame::Compressed { .. }));
}

/// A frame is not sent at the line's rate, which others share.
#[test]
fn the_kernel_paces_precopy_with_a_limit() {
    let bandwidth = Bandwidth::new(Some(50_000_000));
    let (mut sender, _receiver) = limited_link(&bandwidth);
    let stop = CancelFlag::new();
    let pace = |sender: &mut BackgroundSender| {
        sender.make_room(1 << 20, &stop).unwrap();
        sender.kernel_pace
    };
    assert_eq!(pace(&mut sender), Some(50e6 * LIMIT_PACE_GAIN));
    bandwidth.set(Some(20_000_000));
    assert_eq!(pace(&mut sender), Some(20e6 * LIMIT_PACE_GAIN));
    bandwidth.set(None);
    assert_eq!(pace(&mut sender), None);
    bandwidth.set(Some(50_000_000));
    assert!(pace(&mut sender).is_some());
    // The window's pace decides, which is none as long as the guest waits for no page.
    sender.yield_to_urgent(UrgentActivity::new(), 1);
    thread::sleep(SAMPLE_INTERVAL);
    assert_eq!(pace(&mut sender), None);
}

/// What a paused guest waits for is neither limited nor counted.
#[test]
fn a_paused_guest_does_not_wait_for_a_limit() {
    let bandwidth = Bandwidth::new(Some(10));
    let (mut sender, _receiver) = limited_link(&bandwidth);
    let stop = CancelFlag::new();
    let page = PageRange::from_len(Page::new(1), 1);
    let send = |sender: &mut BackgroundSender| {
        sender.make_room(PAGE_SIZE as u64, &stop).unwrap();
        let pace = sender.kernel_pace;
        sender.pages(page, &[1; PAGE_SIZE], &stop).unwrap();
        sender.flush(&stop).unwrap();
        pace
    };
    let wait = |sender: &mut BackgroundSender| {
        let limit = sender.rate_limit.get().unwrap();
        limit.wait(Instant::now())
    };
    sender.set_unlimited(true);
    for _ in 0..4 {
        assert_eq!(send(&mut sender), None);
        assert_eq!(wait(&mut sender), Duration::ZERO);
    }
    sender.set_unlimited(false);
    assert!(send(&mut sender).is_some());
    assert!(wait(&mut sender) > Duration::ZERO);
}
