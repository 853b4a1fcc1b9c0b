//! Pages that travel compressed. The guest checks each one.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use hikkoshi_account::{Account, Compressed};
use hikkoshi_engine::{Compression, Mode};
use hikkoshi_pages::PAGE_BYTES;
use hikkoshi_wire::{CompressionMethod, Features, Frame, Role};

use crate::memory::{HUGE, HugePages, MIB, SMALL, layout};
use crate::run::Setup;
use hikkoshi_lab::relay::Fate;

const MODES: [Mode; 3] = [Mode::Precopy, Mode::Postcopy, Mode::Hybrid];

/// Frames of a migration: compressed ones by link, and others with content on background links.
#[derive(Debug, Default)]
struct Frames {
    lz4: AtomicU64,
    zstd: AtomicU64,
    plain: AtomicU64,
    elsewhere: AtomicU64,
}

impl Frames {
    /// Counts what passes between both sides of `setup`.
    fn of(setup: &mut Setup) -> Arc<Self> {
        let frames = Arc::new(Self::default());
        let counting = Arc::clone(&frames);
        setup.relay(move |message| {
            let is_background = matches!(message.role, Role::Background { .. });
            let counter = match message.frame {
                Frame::Compressed { .. } if !is_background => &counting.elsewhere,
                Frame::Compressed { method, .. } => match method {
                    CompressionMethod::Lz4 => &counting.lz4,
                    CompressionMethod::Zstd => &counting.zstd,
                },
                Frame::Pages { .. } if is_background => &counting.plain,
                _ => return Fate::Pass,
            };
            counter.fetch_add(1, Ordering::Relaxed);
            Fate::Pass
        });
        frames
    }

    fn compressed(&self) -> (u64, u64) {
        assert_eq!(self.elsewhere.load(Ordering::Relaxed), 0);
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        (of(&self.lz4), of(&self.zstd))
    }
}

/// What `account` says of the only method that was used. `None`: the guest has always waited for
/// pages.
fn only(account: &Account, method: CompressionMethod) -> Option<Compressed> {
    let Some(all) = account.compression else {
        assert_eq!(account.pages.precopy, 0);
        return None;
    };
    let (used, unused) = match method {
        CompressionMethod::Lz4 => (all.lz4, all.zstd),
        CompressionMethod::Zstd => (all.zstd, all.lz4),
    };
    assert_eq!(unused, None);
    used
}

#[test]
fn each_method_in_each_mode() {
    for method in CompressionMethod::ALL {
        for mode in MODES {
            // In post-copy nothing is compressed while the guest waits for pages, and for a moment
            // after that: there the guest is idle, once its device state is loaded.
            let memory = layout(&[(MIB, SMALL), (2 * MIB, SMALL)]);
            let running = mode == Mode::Precopy;
            let mut setup = Setup::with(mode, &memory, &memory, running);
            setup.options.compression = Compression::Always(method);
            setup.options.background_delay = Duration::from_millis(200);
            let frames = Frames::of(&mut setup);
            let (source, destination) = setup.run().moved(running);
            // Each page of this guest becomes smaller; those are not compressed that are read ahead
            // around a page for which it has waited.
            let plain = frames.plain.load(Ordering::Relaxed);
            assert!(plain == 0 || mode != Mode::Precopy && plain < 20, "{plain}");
            let (lz4, zstd) = frames.compressed();
            let compressed = only(&source, method).unwrap();
            match method {
                CompressionMethod::Lz4 => assert!(lz4 > 0 && zstd == 0),
                CompressionMethod::Zstd => assert!(zstd > 0 && lz4 == 0),
            }
            let pages = source.pages.precopy + source.pages.background;
            match plain {
                0 => assert_eq!(compressed.content_bytes, pages * PAGE_BYTES),
                _ => assert!(compressed.content_bytes > pages * PAGE_BYTES / 2),
            }
            assert!(compressed.sent_bytes < compressed.content_bytes * 2 / 3);
            let bytes = source.bytes.precopy + source.bytes.background;
            assert!(bytes < compressed.content_bytes, "{bytes}: {compressed:?}");
            // Both sides count the same.
            assert_eq!(source.compression, destination.compression);
            assert_eq!(source.bytes.precopy, destination.bytes.precopy);
            assert_eq!(source.bytes.background, destination.bytes.background);
            assert_eq!(source.pages.background, destination.pages.background);
        }
    }
}

#[test]
fn several_links_and_huge_pages() {
    let Some(_pages) = HugePages::reserve(4) else {
        return;
    };
    let source = layout(&[(3 * SMALL, SMALL), (3 * HUGE, SMALL)]);
    let destination = layout(&[(3 * SMALL, SMALL), (3 * HUGE, HUGE)]);
    for mode in MODES {
        let mut setup = Setup::with(mode, &source, &destination, true);
        setup.options.compression = Compression::Always(CompressionMethod::Zstd);
        setup.options.links = 3;
        let (source, destination) = setup.run().moved(true);
        assert_eq!(source.compression, destination.compression);
        match only(&source, CompressionMethod::Zstd) {
            Some(compressed) => assert!(compressed.saved_bytes() > 0),
            None => assert_eq!(mode, Mode::Postcopy),
        }
    }
}

/// A destination of another version, for instance.
#[test]
fn a_destination_without_the_feature_gets_pages_as_they_are() {
    for compression in [
        Compression::Auto,
        Compression::Always(CompressionMethod::Lz4),
    ] {
        for mode in MODES {
            let mut setup = Setup::new(mode);
            setup.options.compression = compression;
            setup.features = Features::default();
            let frames = Frames::of(&mut setup);
            let (source, destination) = setup.run().moved(true);
            assert_eq!(frames.compressed(), (0, 0));
            assert_eq!((source.compression, destination.compression), (None, None));
        }
    }
}

#[test]
fn nothing_is_compressed_when_it_is_off() {
    let mut setup = Setup::new(Mode::Hybrid);
    setup.options.compression = Compression::Off;
    let frames = Frames::of(&mut setup);
    let (source, _) = setup.run().moved(true);
    assert_eq!((frames.compressed(), source.compression), ((0, 0), None));
}

/// 32 MiB over 10 MB/s: the first pages show that the line limits, the others are compressed.
#[test]
fn a_slow_line_begins_to_compress() {
    let memory = layout(&[(32 << 20, SMALL)]);
    let mut setup = Setup::with(Mode::Precopy, &memory, &memory, false);
    setup.options.compression = Compression::Auto;
    setup.options.bandwidth = Some(10_000_000);
    let (source, destination) = setup.run().moved(false);
    let compressed = source.compression.unwrap().all();
    assert!(compressed.content_bytes > 8 << 20, "{compressed:?}");
    assert!(compressed.saved_bytes() > compressed.content_bytes / 3);
    assert_eq!(source.compression, destination.compression);
}

/// It may compress or not: the guest is the same.
#[test]
fn left_to_the_link() {
    for mode in MODES {
        let mut setup = Setup::new(mode);
        setup.options.compression = Compression::Auto;
        // A slow line: in the second half of the guest it is known to be one.
        setup.options.bandwidth = Some(20_000_000);
        let (source, destination) = setup.run().moved(true);
        assert_eq!(source.compression, destination.compression);
        assert_eq!(source.bytes.background, destination.bytes.background);
    }
}
