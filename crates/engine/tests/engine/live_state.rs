//! What an observer can read of a migration.

use hikkoshi_engine::Mode;
use hikkoshi_engine::report::{CellCounts, GuestAt, Live, Phase, Stage};
use hikkoshi_handover::{DestinationStage, SourceStage};

use crate::run::Setup;

/// The sum of all cells.
fn sum(live: &Live) -> CellCounts {
    let map = live.map();
    (0..map.cells())
        .map(|cell| map.cell(cell))
        .fold(CellCounts::default(), |sum, cell| CellCounts {
            taken: sum.taken + cell.taken,
            recorded_us: sum.recorded_us + cell.recorded_us,
            dirty: sum.dirty + cell.dirty,
            copied: sum.copied + cell.copied,
            urgent: sum.urgent + cell.urgent,
            background: sum.background + cell.background,
            missing: sum.missing + cell.missing,
        })
}

/// In each mode, the map and the counters of both sides agree with the account.
#[test]
fn both_sides_show_what_has_happened() {
    for mode in [Mode::Precopy, Mode::Hybrid, Mode::Postcopy] {
        let setup = Setup::new(mode);
        let [source, destination] = setup.live.clone();
        let done = setup.run();
        let (account, _) = done.moved(true);
        let (source, destination) = (source.get().unwrap(), destination.get().unwrap());
        assert_eq!(source.name(), destination.name(), "the same migration");
        assert!(!source.is_resumed() && source.mode() == mode);
        let (here, there) = (source.snapshot(), destination.snapshot());
        assert!(here.waiting.is_empty() && there.waiting.is_empty());
        let (here, there) = (here.state, there.state);
        assert_eq!(here.stage, Stage::Source(SourceStage::Done));
        assert_eq!(there.stage, Stage::Destination(DestinationStage::Complete));
        for state in [&here, &there] {
            assert_eq!(state.guest_at, GuestAt::Destination);
            assert!(state.downtime_ms > Some(0.0));
            assert!(state.waiting_pages == 0 && state.outages.is_empty());
        }
        let downtime = here.downtime_ms.unwrap();
        assert!(
            (downtime - account.downtime_ms.unwrap()).abs() < 0.01,
            "{downtime}"
        );
        assert_eq!(here.pages, account.pages);
        assert_eq!((here.repeats, there.repeats), (account.repeats, None));
        let (sent, received) = (sum(source), sum(destination));
        let pages = source.layout().pages();
        if mode == Mode::Postcopy {
            assert_eq!((sent.taken, sent.copied, here.rounds.len()), (0, 0, 0));
        } else {
            assert!(sent.taken >= pages && sent.copied >= pages, "{sent:?}");
            assert!(sent.recorded_us > 0, "{sent:?}");
            // All of memory once, and what was dirty in later rounds.
            let again = sent.copied - pages;
            assert!(again <= sent.dirty, "{sent:?}");
            // Holes of the first round that were written later were not sent before.
            assert!(here.repeats.unwrap().precopy.pages <= again);
            assert!(!here.rounds.is_empty() && here.rounds[0].ended_ms.is_some());
            let rounds: u64 = here.rounds.iter().map(|r| r.pages + r.zero).sum();
            assert!(rounds >= pages && rounds <= sent.copied, "{rounds}");
        }
        if mode == Mode::Precopy {
            assert_eq!((here.phase, here.missing_pages), (Phase::Switchover, None));
            assert_eq!((sent.urgent, sent.background), (0, 0));
        } else {
            assert_eq!(
                (here.phase, there.phase),
                (Phase::Postcopy, Phase::Postcopy)
            );
            assert_eq!(
                (here.missing_pages, there.missing_pages),
                (Some(0), Some(0))
            );
            assert_eq!(
                (sent.urgent, sent.background),
                (received.urgent, received.background)
            );
            let requests = account.requests.request_latency_us.count;
            assert_eq!(there.requests.count, requests);
        }
    }
}
