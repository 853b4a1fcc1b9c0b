//! Pages that are sent more than once: the source's counts are those of a relay between the sides.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hikkoshi_engine::report::{Repeated, Repeats};
use hikkoshi_engine::{Account, Mode};
use hikkoshi_pages::{PAGE_BYTES, PageRange};
use hikkoshi_wire::Frame;

use crate::machine::Side;
use crate::memory::{HUGE, HugePages, MIB, SMALL, layout};
use crate::run::Setup;
use hikkoshi_lab::relay::{Fate, Message, Towards};

const LONG: Duration = Duration::from_secs(40);

/// A part of a migration. In each the links are other ones, or empty before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    Precopy,
    Postcopy,
    /// After the links were lost.
    Resumed,
}

/// The pages in a frame, and whether with their content.
type SentFrame = (Part, PageRange, bool);

/// Counts page frames as they pass.
#[derive(Debug, Default)]
struct Seen {
    frames: Mutex<Vec<SentFrame>>,
    postcopy: AtomicBool,
    resumed: AtomicBool,
}

impl Seen {
    fn add(&self, message: &Message) {
        match message.name.as_str() {
            // The links were drained before, and post-copy pages follow the answer.
            "DiscardEnd" => self.postcopy.store(true, Ordering::SeqCst),
            "ResumeRequest" => self.resumed.store(true, Ordering::SeqCst),
            _ => {}
        }
        let (range, content) = match message.frame {
            Frame::Pages { range } => (range, true),
            Frame::Zeros { range } => (range, false),
            _ => return,
        };
        if message.towards == Towards::Destination {
            let part = match self.postcopy.load(Ordering::SeqCst) {
                false => Part::Precopy,
                true if self.resumed.load(Ordering::SeqCst) => Part::Resumed,
                true => Part::Postcopy,
            };
            self.frames.lock().unwrap().push((part, range, content));
        }
    }

    /// The repeats, as far as the frames tell, and how many pages had content when they were sent
    /// first. What was lost with a link is not in it.
    fn repeats(&self, pages: u64) -> (Repeats, u64) {
        let pages = usize::try_from(pages).unwrap();
        let (mut before, mut after) = (vec![false; pages], vec![false; pages]);
        let (mut repeats, mut first) = (Repeats::default(), 0);
        for &(part, range, content) in &*self.frames.lock().unwrap() {
            for page in range {
                let page = usize::try_from(page.index()).unwrap();
                first += u64::from(content && !before[page] && !after[page]);
                let why = match (part, before[page], after[page]) {
                    (Part::Precopy, true, _) => Some(&mut repeats.precopy),
                    (Part::Postcopy, _, true) => Some(&mut repeats.requested),
                    (Part::Resumed, _, true) => Some(&mut repeats.resent),
                    (Part::Postcopy | Part::Resumed, true, false) => Some(&mut repeats.stale),
                    _ => None,
                };
                if let Some(Repeated { pages, bytes }) = why {
                    *pages += 1;
                    *bytes += if content { PAGE_BYTES } else { 0 };
                }
                match part {
                    Part::Precopy => before[page] = true,
                    Part::Postcopy | Part::Resumed => after[page] = true,
                }
            }
        }
        (repeats, first)
    }
}

/// Pages that were sent with their content.
fn with_content(account: &Account) -> u64 {
    account.pages.precopy + account.pages.urgent + account.pages.background
}

/// Pages that were sent with their content, after they had been sent before.
fn again_with_content(repeats: &Repeats) -> u64 {
    let all = [
        repeats.precopy,
        repeats.stale,
        repeats.host_page,
        repeats.resent,
        repeats.requested,
    ];
    let bytes: u64 = all.iter().map(|repeated| repeated.bytes).sum();
    bytes / PAGE_BYTES
}

/// A guest that writes in each round, and much before it is paused.
fn setup(mode: Mode) -> Setup {
    let mut setup = Setup::new(mode);
    setup.options.precopy_rounds = 3;
    for (call, instructions) in [("take", 50), ("pause", 300)] {
        let machine = Arc::clone(&setup.machine);
        setup.source.script.at(call, move || {
            // The log is also taken when the guest is paused.
            if machine.runs() == Some(Side::Source) {
                machine.work(instructions);
            }
            Ok(())
        });
    }
    setup
}

#[test]
fn the_source_counts_what_it_sends_twice() {
    for mode in [Mode::Precopy, Mode::Hybrid, Mode::Postcopy] {
        let mut setup = setup(mode);
        let seen = Arc::new(Seen::default());
        let sees = Arc::clone(&seen);
        setup.relay(move |message: &Message| {
            sees.add(message);
            Fate::Pass
        });
        let live = Arc::clone(&setup.live[0]);
        let (account, there) = setup.run().moved(true);
        let counted = account.repeats.unwrap();
        let (expected, first) = seen.repeats(account.pages.guest);
        assert_eq!(counted, expected, "{mode:?}");
        assert_eq!(live.get().unwrap().snapshot().state.repeats, Some(counted));
        assert_eq!(there.repeats, None, "only the source knows");
        let again = again_with_content(&counted);
        assert_eq!(with_content(&account), first + again);
        match mode {
            Mode::Precopy => assert!(counted.precopy.pages > 0 && counted.stale.pages == 0),
            Mode::Hybrid => assert!(counted.precopy.pages > 0 && counted.stale.pages > 0),
            Mode::Postcopy => assert_eq!(counted, Repeats::default()),
        }
        assert_eq!(counted.resent.pages, 0);
    }
}

/// The links break once after *commit*: what was on its way is counted, and nothing else.
#[test]
fn pages_that_are_lost_with_the_links_are_counted() {
    for mode in [Mode::Hybrid, Mode::Postcopy] {
        let mut setup = setup(mode);
        setup.retry_for(LONG);
        let seen = Arc::new(Seen::default());
        let (sees, committed, frames) =
            (Arc::clone(&seen), AtomicBool::new(false), AtomicU32::new(0));
        setup.relay(move |message: &Message| {
            sees.add(message);
            if message.name == "Commit" {
                committed.store(true, Ordering::SeqCst);
            }
            let is_page = matches!(message.frame, Frame::Pages { .. } | Frame::Zeros { .. });
            let counts = is_page && committed.load(Ordering::SeqCst);
            if counts && frames.fetch_add(1, Ordering::SeqCst) == 5 {
                return Fate::CutBefore;
            }
            Fate::Pass
        });
        let (account, _) = setup.run().moved(true);
        assert_eq!(account.outages.len(), 1, "the links broke once");
        let counted = account.repeats.unwrap();
        let (seen, first) = seen.repeats(account.pages.guest);
        assert_eq!((counted.precopy, counted.stale), (seen.precopy, seen.stale));
        assert_eq!(counted.host_page.pages + counted.requested.pages, 0);
        // Some were lost before they reached the relay, so that it saw them once.
        assert!(
            counted.resent.pages >= seen.resent.pages,
            "{counted:?} {seen:?}"
        );
        assert!(
            counted.resent.pages > 0,
            "the frame that the links broke at"
        );
        // Each page has arrived, so the relay has seen it; what was sent beside that are repeats.
        let again = again_with_content(&counted);
        assert_eq!(with_content(&account), first + again);
    }
}

/// The destination drops whole huge pages, and needs the rest of them again.
#[test]
fn pages_beside_a_written_one_are_told_apart() {
    let Some(_pages) = HugePages::reserve(8) else {
        return;
    };
    let source = layout(&[(8 * MIB, SMALL), (MIB, SMALL)]);
    let destination = layout(&[(8 * MIB, HUGE), (MIB, SMALL)]);
    let mut setup = Setup::with(Mode::Hybrid, &source, &destination, true);
    let machine = Arc::clone(&setup.machine);
    setup.source.script.at("pause", move || {
        machine.work(20);
        Ok(())
    });
    let seen = Arc::new(Seen::default());
    let sees = Arc::clone(&seen);
    setup.relay(move |message: &Message| {
        sees.add(message);
        Fate::Pass
    });
    let (account, _) = setup.run().moved(true);
    let counted = account.repeats.unwrap();
    let (expected, _) = seen.repeats(account.pages.guest);
    // The relay does not know what was written.
    let both = counted.stale.pages + counted.host_page.pages;
    assert_eq!(both, expected.stale.pages, "{counted:?}");
    assert!(
        counted.stale.pages > 0 && counted.host_page.pages > 0,
        "{counted:?}"
    );
}
