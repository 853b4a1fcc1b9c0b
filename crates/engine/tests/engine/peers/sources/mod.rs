//! Sources that violate the protocol, with a real destination.

mod blocking;
mod compressed_pages;
mod links;
mod messages;

use std::sync::Arc;
use std::thread;

use error_reporter::Report;
use hikkoshi_engine::{
    Account, CancelFlag, DestinationGuest, DestinationOptions, ReceiveError, receive,
};
use hikkoshi_handover::Outcome;
use hikkoshi_link::{Address, LinkReader, LinkWriter, Stream, hello, split};
use hikkoshi_pages::{MAX_GUEST_RANGES, Page, PageRange, RamLayout};
use hikkoshi_wire::{
    DeviceStateDigest, GuestDescription, GuestRangeDescription, Limits, MAX_CONTROL, MigrationId,
    OfferedGuest, PageRanges, Role, ToDestination, ToSource, encode_control,
};

use crate::guests::{TestDestination, device_state};
use crate::machine::{Machine, Side};
use crate::memory::{MIB, SMALL, layout};
use crate::run::{open, receive_control, watchdog};

use super::{listen, machine};

/// A source that sends what a test scripts.
pub(super) struct Source {
    pub(super) control: (LinkReader, LinkWriter),
    pub(super) background: (LinkReader, LinkWriter),
    pub(super) urgent: Option<(LinkReader, LinkWriter)>,
    id: MigrationId,
    description: GuestDescription,
    /// Its sockets stay open until it is dropped.
    _streams: Vec<Arc<Stream>>,
}

const ID: [u8; 16] = *b"the right number";

fn offer(description: &GuestDescription, may_postcopy: bool) -> ToDestination {
    ToDestination::Offer {
        guest: Box::new(OfferedGuest::from_description(description.clone())),
        mode: hikkoshi_wire::Mode::Hybrid,
        may_postcopy,
        background_links: 1,
        keeps_frames: false,
    }
}

impl Source {
    pub(super) fn connect(
        address: &Address,
        limits: Limits,
        description: &GuestDescription,
        may_postcopy: bool,
    ) -> Self {
        let id = MigrationId::from_bytes(ID);
        let mut streams = Vec::new();
        let mut link = |role| {
            let stream = Arc::new(open(&address.clone().into(), &hello(role, id)).unwrap());
            streams.push(Arc::clone(&stream));
            split(&stream, limits, &CancelFlag::new()).unwrap()
        };
        let mut control = link(Role::Control);
        control
            .1
            .control(&offer(description, may_postcopy))
            .unwrap();
        let answer: ToSource = control.0.control().unwrap();
        assert!(matches!(answer, ToSource::Accept { .. }), "{answer:?}");
        let background = link(Role::Background { index: 0 });
        let urgent = may_postcopy.then(|| link(Role::Urgent));
        Self {
            control,
            background,
            urgent,
            id,
            description: description.clone(),
            _streams: streams,
        }
    }

    pub(super) fn send(&mut self, message: &ToDestination) {
        // The destination may close the link before everything was sent.
        let _ = self.control.1.control(message);
    }

    pub(super) fn discard(&mut self, from: u64, pages: u64) {
        let range = PageRange::from_len(Page::new(from), pages);
        for ranges in PageRanges::batches([range]).collect::<Vec<_>>() {
            self.send(&ToDestination::Discard { ranges });
        }
    }

    /// Sends device state and the switch.
    pub(super) fn switch(&mut self, owed_pages: u64, postcopy: bool) {
        let mut digest = DeviceStateDigest::new();
        for chunk in device_state(1000).chunks(400) {
            digest.update(chunk).unwrap();
            let bytes = chunk.to_vec();
            self.send(&ToDestination::DeviceStateChunk { bytes });
        }
        self.send(&ToDestination::Switch {
            device_bytes: digest.bytes(),
            device_crc32c: digest.crc32c(),
            owed_pages,
            postcopy,
            running: true,
        });
    }

    /// An offer of the largest size that a message may have now.
    pub(super) fn large_offer(&self) -> ToDestination {
        let mut description = self.description.clone();
        let piece = GuestRangeDescription {
            gpa: 0,
            offset: 0,
            bytes: 1,
        };
        let block = description.blocks.first_mut().unwrap();
        block.guest = vec![piece; MAX_GUEST_RANGES];
        let block = block.clone();
        // As many as fit.
        let fits = |payload: Vec<u8>| payload.len() <= MAX_CONTROL;
        while encode_control(&offer(&description, true)).is_ok_and(fits) {
            description.blocks.push(block.clone());
        }
        description.blocks.pop();
        offer(&description, true)
    }

    /// The last message of the destination.
    pub(super) fn last_message(&mut self) -> Option<ToSource> {
        let mut last = None;
        while let Ok(message) = self.control.0.control() {
            last = Some(message);
        }
        last
    }
}

/// Runs a scripted source against a real destination.
fn received(
    destination: &RamLayout,
    may_postcopy: bool,
    script: impl FnOnce(&mut Source, &Address) + Send,
) -> (Outcome, String, TestDestination) {
    let small = layout(
        &destination
            .blocks()
            .map(|(block, _)| (block.bytes, SMALL))
            .collect::<Vec<_>>(),
    );
    received_into(&machine(&small, destination), may_postcopy, script)
}

/// What the destination of `machine` receives.
fn received_into(
    machine: &Arc<Machine>,
    may_postcopy: bool,
    script: impl FnOnce(&mut Source, &Address) + Send,
) -> (Outcome, String, TestDestination) {
    let mut guest = TestDestination::new(machine, 1000);
    // No scripted source sends the content that a guest would check.
    guest.checks = false;
    let options = DestinationOptions::default();
    let result = receive_from(&mut guest, may_postcopy, &options, |source, address, _| {
        script(source, address);
        let last = source.last_message();
        assert!(
            matches!(last, Some(ToSource::Failed { .. })),
            "the source gets no reason: {last:?}"
        );
    });
    let ReceiveError { cause, outcome } = result.unwrap_err();
    assert_eq!(guest.script.count("resume"), 0);
    assert_eq!(machine.runs(), Some(Side::Source));
    machine.undamaged();
    (outcome, Report::new(&cause).to_string(), guest)
}

/// Runs a scripted source against the destination `guest`. The source is told where that listens,
/// and what cancels it.
pub(super) fn receive_from(
    guest: &mut TestDestination,
    may_postcopy: bool,
    options: &DestinationOptions,
    script: impl FnOnce(&mut Source, &Address, &CancelFlag) + Send,
) -> Result<Account, ReceiveError> {
    let _watchdog = watchdog();
    let description = guest.description.clone();
    let limits = Limits::from(guest.ram().layout());
    let folder = tempfile::tempdir().unwrap();
    let listener = listen(&folder);
    let control = receive_control(&Arc::default());
    thread::scope(|scope| {
        scope.spawn(|| {
            let address = listener.address();
            let mut source = Source::connect(address, limits, &description, may_postcopy);
            script(&mut source, address, &control.cancel);
        });
        receive(guest, &listener, options, &control)
    })
}

/// A session with an error that must be found before the guest is loaded.
#[track_caller]
pub(super) fn refused(may_postcopy: bool, expected: &str, script: impl FnOnce(&mut Source) + Send) {
    let layout = layout(&[(MIB, SMALL), (MIB, SMALL)]);
    let (outcome, text, guest) = received(&layout, may_postcopy, |source, _| script(source));
    assert!(text.contains(expected), "{text}");
    assert_eq!(outcome, Outcome::AtSource);
    assert_eq!(guest.script.count("release"), 1);
    assert_eq!(guest.script.count("load_device_state"), 0, "{text}");
}
