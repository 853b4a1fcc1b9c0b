//! Faults at a real destination, answered by a scripted source: in any order, in pieces, late, and
//! over a full link.

mod huge_pages;
mod links;

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hikkoshi_engine::{Account, DestinationOptions};
use hikkoshi_pages::{PageRange, RamLayout};
use hikkoshi_wire::{FaultMeasures, Frame, ToDestination, ToSource};

use crate::guests::TestDestination;
use crate::machine::{Machine, Random, Side};
use crate::memory::{SMALL, layout};

use super::sources::{Source, receive_from};

/// What a scripted source works with.
struct PostcopySource<'a> {
    machine: &'a Machine,
    source: &'a mut Source,
    /// Signalled when loading of the device state begins: faults are answered from then on.
    loading: Receiver<()>,
    /// Lets the loading continue: it touches each of these pages from four threads.
    go_on: SyncSender<()>,
}

impl PostcopySource<'_> {
    fn content(&self, range: PageRange) -> Vec<u8> {
        range
            .iter()
            .flat_map(|page| self.machine.expected(page.index()))
            .collect()
    }

    fn urgent(&mut self, range: PageRange) {
        let content = self.content(range);
        let urgent = self.source.urgent.as_mut().unwrap();
        urgent.1.pages(range, &content).unwrap();
    }

    fn urgent_in_pieces(&mut self, range: PageRange) {
        for piece in range.chunks(256) {
            self.urgent(piece);
        }
    }

    fn background(&mut self, range: PageRange) {
        let content = self.content(range);
        self.source.background.1.pages(range, &content).unwrap();
    }

    /// Waits until the device state is being loaded, and lets that continue.
    fn load(&mut self) {
        self.loading.recv().unwrap();
        self.go_on.send(()).unwrap();
    }

    /// Waits until everything sent on the background link has been applied.
    fn applied(&mut self) {
        applied(self.source);
    }

    fn request(&mut self) -> PageRange {
        match self.source.urgent.as_mut().unwrap().0.frame().unwrap() {
            Frame::Request { range } => range,
            other => panic!("{other:?}"),
        }
    }

    /// Receives *Ready*, sends *Commit*, and receives *GuestResumed* and *ResumeTime*.
    fn commit(&mut self) {
        self.ready();
        self.hand_over();
    }

    /// Receives *Ready*: the pages needed for loading are installed.
    fn ready(&mut self) {
        let ready: ToSource = self.source.control.0.control().unwrap();
        assert_eq!(ready, ToSource::Ready);
    }

    fn hand_over(&mut self) {
        self.machine.stop(Side::Source, Duration::from_secs(20));
        self.source.send(&ToDestination::Commit);
        let resumed: ToSource = self.source.control.0.control().unwrap();
        assert_eq!(resumed, ToSource::GuestResumed);
        let timed: ToSource = self.source.control.0.control().unwrap();
        assert!(matches!(timed, ToSource::ResumeTime { .. }), "{timed:?}");
    }

    /// Receives the measurements, and sends *Goodbye*.
    fn end(&mut self) -> (FaultMeasures, u64) {
        let complete: ToSource = self.source.control.0.control().unwrap();
        let ToSource::Complete { requests, faults } = complete else {
            panic!("{complete:?}")
        };
        self.source.send(&ToDestination::Goodbye);
        (*faults, requests.count)
    }
}

fn applied(source: &mut Source) {
    let sent = source.background.1.sent();
    loop {
        let Frame::Ack { bytes } = source.background.0.frame().unwrap() else {
            panic!("no acknowledgement")
        };
        if bytes == sent {
            return;
        }
    }
}

/// Migrates a stopped guest to `destination` in post-copy with every page owed; `script` answers
/// from the moment that the switch was sent until every page is sent. The content and what was
/// measured are verified.
fn receive_postcopy(
    destination: &RamLayout,
    options: DestinationOptions,
    prepare: impl FnOnce(&mut TestDestination, &Arc<Machine>),
    script: impl FnOnce(&mut PostcopySource<'_>) + Send,
) -> Account {
    let pages = destination.pages();
    let begin = move |_: &Machine, source: &mut Source| source.discard(0, pages);
    receive_postcopy_after(begin, destination, options, prepare, script)
}

/// Receives a guest by post-copy; `begin` does everything before the switch.
fn receive_postcopy_after(
    begin: impl FnOnce(&Machine, &mut Source) + Send,
    destination: &RamLayout,
    options: DestinationOptions,
    prepare: impl FnOnce(&mut TestDestination, &Arc<Machine>),
    script: impl FnOnce(&mut PostcopySource<'_>) + Send,
) -> Account {
    let blocks = destination.blocks();
    let small = layout(&blocks.map(|(b, _)| (b.bytes, SMALL)).collect::<Vec<_>>());
    let machine = super::machine(&small, destination);
    machine.work(100);
    // The guest stays stopped: its content at the source does not change.
    machine.stop(Side::Source, Duration::from_secs(20));
    let mut guest = TestDestination::new(&machine, 1000);
    let (loading, begins) = sync_channel(1);
    let (go_on, goes_on) = sync_channel::<()>(1);
    let goes_on = Mutex::new(goes_on);
    guest.script.at("load_device_state", move || {
        loading.send(()).unwrap();
        let _ = goes_on.lock().unwrap().recv();
        Ok(())
    });
    prepare(&mut guest, &machine);
    let pages = destination.pages();
    let reported = Mutex::new(None);
    let account = receive_from(&mut guest, true, &options, |source, _, _| {
        begin(&machine, source);
        source.switch(pages, true);
        let mut stage = PostcopySource {
            machine: &machine,
            source,
            loading: begins,
            go_on,
        };
        script(&mut stage);
        *reported.lock().unwrap() = Some(stage.end());
    });
    let account = account.unwrap();
    check_measures(&account, &reported.into_inner().unwrap().unwrap());
    machine.check(Side::Destination);
    account
}

/// All of `range` in pieces of 1 to `most` pages, in random order.
fn shuffled(range: PageRange, most: u64, random: &mut Random) -> Vec<PageRange> {
    let mut pieces = Vec::new();
    let mut rest = range;
    while !rest.is_empty() {
        let end = rest.start().saturating_add(1 + random.below(most));
        let (piece, tail) = rest.split_at(end.min(range.end()));
        pieces.push(piece);
        rest = tail;
    }
    for at in (1..pieces.len()).rev() {
        pieces.swap(at, random.below(at as u64 + 1) as usize);
    }
    pieces
}

fn check_measures(account: &Account, reported: &(FaultMeasures, u64)) {
    let (measures, count) = reported;
    let requests = &account.requests;
    assert_eq!(requests.request_latency_us.count, *count);
    let stages = &requests.request_stages_us;
    for stage in [
        &stages.fault_to_request,
        &stages.request_to_page,
        &stages.page_to_installed,
    ] {
        assert_eq!(stage.count, *count, "a stage has too few requests");
    }
    assert_eq!(measures.stages.request_to_page.count, *count);
    assert_eq!(measures.unmeasured, 0);
    let reported: Vec<_> = measures.threads.iter().map(|t| t.count).collect();
    let kept: Vec<_> = requests.faults.iter().map(|t| t.count).collect();
    assert_eq!(reported, kept);
}
