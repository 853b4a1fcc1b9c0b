//! Recordings of engines that followed one another.

use super::*;
use crate::record::examples::{migration, state};
use crate::{End, VERSION};
use hikkoshi_account::{
    Bucket, Bytes, GuestAt, LatencySummary, Map, Outage, Pages, Phase, Round, Side, Stage,
    SwitchoverStep,
};
use hikkoshi_handover::SourceStage;

const STARTED: u64 = 1_700_000_000_000;

fn end(at_ms: u64, exit_status: u8, message: &str) -> End {
    let account = include_str!("../../../account/tests/account.json");
    End {
        at_ms,
        exit_status,
        reason: "link".into(),
        message: message.into(),
        next: None,
        account: serde_json::from_str(account).unwrap(),
    }
}

fn requests(count: u64, mean: f64, le_us: u64) -> LatencySummary {
    LatencySummary {
        count,
        mean,
        p50: mean,
        p99: mean,
        max: mean,
        histogram: vec![Bucket { le_us, count }],
    }
}

/// The state of an engine in post-copy, whose counts are `number` and multiples of it.
fn postcopy(at_ms: u64, number: u64) -> State {
    State {
        phase: Phase::Postcopy,
        stage: Stage::Source(SourceStage::HandedOver),
        guest_at: GuestAt::Destination,
        pages: Pages {
            precopy: number,
            zero: 2 * number,
            urgent: 3 * number,
            background: 4 * number,
            guest: 1024,
        },
        bytes: Bytes {
            precopy: 10 * number,
            urgent: 20 * number,
            background: 30 * number,
            device_state: 40 * number,
            disks: Some(50 * number),
        },
        missing_pages: Some(100),
        ..state(at_ms)
    }
}

/// A recording with states at these times, of an engine that began `later_ms` after the first one.
fn recorded(pid: u32, later_ms: u64, states: &[State]) -> Recording {
    let mut migration = migration();
    migration.pid = pid;
    migration.started_unix_ms = STARTED + later_ms;
    migration.resumed = later_ms > 0;
    let mut recorder = Recorder::new(migration);
    states.iter().for_each(|state| recorder.add(state.clone()));
    recorder.into_recording()
}

/// The source's engine ended with exit status 3 after 5 s, and another one began 60 s later than
/// it.
fn both() -> [Recording; 2] {
    let mut last = postcopy(4900, 10);
    last.downtime_ms = Some(4.5);
    last.likely_downtime_ms = Some(4.25);
    last.switchover = vec![SwitchoverStep {
        step: "paused".into(),
        at_ms: 0.5,
    }];
    last.rounds = vec![Round {
        round: 1,
        begun_ms: 100,
        ended_ms: Some(2000),
        pages: 7,
        zero: 8,
        bytes: 9,
        dirty_pages: Some(3),
    }];
    last.round = 1;
    let outage = |from_ms, to_ms| Outage {
        from_ms,
        before_ms: 0,
        to_ms,
        until_ms: None,
    };
    last.outages = vec![outage(3000, Some(3500)), outage(4000, None)];
    last.requests = requests(100, 50.0, 64);
    last.map = Map {
        sent: vec![512, 100],
        by_request: vec![5],
        background: vec![0, 7],
        missing: vec![0, 300],
        ..Map::default()
    };
    let mut earlier = recorded(11, 0, &[state(0), last]);
    earlier.end = Some(end(5000, 3, "the links were lost"));
    earlier.notices.push(Notice {
        at_ms: 50,
        text: "before".into(),
    });

    let mut last = postcopy(2000, 1);
    last.outages = vec![outage(3, Some(700)), outage(1000, Some(1200))];
    last.requests = requests(300, 100.0, 128);
    last.map = Map {
        by_request: vec![1, 1],
        background: vec![0, 200],
        missing: vec![0, 99],
        ..Map::default()
    };
    let mut later = recorded(22, 60_000, &[postcopy(0, 0), last]);
    later.end = Some(end(2100, 0, "the guest was moved"));
    later.notices.push(Notice {
        at_ms: 800,
        text: "after".into(),
    });
    [earlier, later]
}

#[test]
fn a_resumed_migration_has_what_both_engines_recorded() {
    let [earlier, later] = both();
    let [joined] = &join_all(vec![later.clone(), earlier.clone()])[..] else {
        panic!("one recording");
    };
    assert_eq!(joined.version, VERSION);
    assert_eq!(joined.migration.started_unix_ms, STARTED);
    assert_eq!((joined.migration.pid, joined.migration.resumed), (22, true));
    let state = joined.state.as_ref().unwrap();
    assert_eq!((state.at_ms, state.phase), (62_000, Phase::Postcopy));
    assert_eq!(state.pages, postcopy(0, 11).pages);
    assert_eq!(state.bytes, postcopy(0, 11).bytes);
    assert_eq!((state.downtime_ms, state.round), (Some(4.5), 1));
    assert_eq!(state.likely_downtime_ms, Some(4.25));
    assert_eq!(state.switchover[0].step, "paused");
    assert_eq!(state.rounds, earlier.state.as_ref().unwrap().rounds);
    // The second outage lasted until the new engine had links.
    let outages: Vec<_> = state.outages.iter().map(|o| (o.from_ms, o.to_ms)).collect();
    assert_eq!(
        outages,
        [
            (3000, Some(3500)),
            (4000, Some(60_700)),
            (61_000, Some(61_200))
        ]
    );
    assert_eq!(state.requests.count, 400);
    assert!((state.requests.mean - 87.5).abs() < 1e-9);
    assert_eq!(state.requests.histogram.len(), 2);
    assert_eq!(state.map.sent, [512, 100]);
    assert_eq!(state.map.by_request, [6, 1]);
    assert_eq!(state.map.background, [0, 207]);
    assert_eq!(state.map.missing, [0, 99]);

    let times: Vec<_> = joined.samples.iter().map(|sample| sample.at_ms).collect();
    assert_eq!(times, [0, 4900, 60_000, 62_000]);
    let frames: Vec<_> = joined.frames.iter().map(|frame| frame.at_ms).collect();
    assert_eq!(frames, times);
    assert_eq!(joined.frames[3].map, state.map);
    let notices: Vec<_> = joined.notices.iter().map(|n| (n.at_ms, &*n.text)).collect();
    assert_eq!(
        notices,
        [
            (50, "before"),
            (
                5000,
                "the engine (process 11) has ended: the links were lost"
            ),
            (
                60_000,
                "another engine (process 22) has resumed the migration"
            ),
            (60_800, "after"),
        ]
    );
    let end = joined.end.as_ref().unwrap();
    assert_eq!((end.at_ms, end.exit_status), (62_100, 0));
    assert_eq!(end.account, later.end.as_ref().unwrap().account);

    let engines = joined.all_engines();
    let times: Vec<_> = engines.iter().map(|e| (e.begun_ms, e.until_ms)).collect();
    assert_eq!(times, [(0, Some(5000)), (60_000, Some(62_100))]);
    let status = |engine: &Engine| engine.end.as_ref().map(|end| end.exit_status);
    assert_eq!(
        engines.iter().map(status).collect::<Vec<_>>(),
        [Some(3), Some(0)]
    );
    assert!(
        engines
            .iter()
            .all(|it| it.end.as_ref().unwrap().account.is_none())
    );
}

/// What was joined before is not counted twice: a dashboard's recording beside the files.
#[test]
fn recordings_are_joined_once() {
    let [earlier, later] = both();
    let once = join_all(vec![earlier.clone(), later.clone()]);
    assert_eq!(join_all(once.clone()), once);
    for others in [
        vec![earlier.clone()],
        vec![later.clone()],
        vec![earlier, later],
    ] {
        let mut all = others;
        all.extend(once.clone());
        assert_eq!(join_all(all.clone()), once);
        all.reverse();
        assert_eq!(join_all(all), once);
    }
}

#[test]
fn three_engines_are_joined_in_their_order() {
    let [first, second] = both();
    let mut third = recorded(33, 120_000, &[postcopy(0, 0), postcopy(1000, 100)]);
    third.end = None;
    let in_order = join_all(vec![first.clone(), second.clone(), third.clone()]);
    let state = in_order[0].state.as_ref().unwrap();
    assert_eq!(state.pages, postcopy(0, 111).pages);
    let pids: Vec<_> = in_order[0].all_engines().iter().map(|e| e.pid).collect();
    assert_eq!(pids, [11, 22, 33]);
    assert_eq!(
        join_all(vec![third.clone(), first.clone(), second.clone()]),
        in_order
    );
    // The last two before.
    let pair = join_all(vec![second, third]);
    assert_eq!(pair.len(), 1);
    let joined = join_all([pair, vec![first]].concat());
    assert_eq!(joined[0].state.as_ref().unwrap().pages, state.pages);
    assert_eq!(joined[0].all_engines(), in_order[0].all_engines());
}

/// The engine was killed in post-copy; nothing says when the guest lost its links.
#[test]
fn the_time_without_an_engine_is_an_outage() {
    let [mut earlier, mut later] = both();
    earlier.end = None;
    earlier.state.as_mut().unwrap().outages.clear();
    later.state.as_mut().unwrap().outages.clear();
    later.end = None;
    let joined = join_all(vec![earlier.clone(), later.clone()]);
    let outages = &joined[0].state.as_ref().unwrap().outages;
    let expected = Outage {
        from_ms: 4900,
        before_ms: 0,
        to_ms: Some(60_000),
        until_ms: None,
    };
    assert_eq!(outages, &[expected]);
    assert_eq!(
        joined[0].notices[1].text,
        "the engine (process 11) was killed"
    );
    assert_eq!(joined[0].all_engines()[0].end, None);
    // The later engine may know it more exactly.
    later.state.as_mut().unwrap().outages = vec![Outage {
        from_ms: 0,
        before_ms: 700,
        to_ms: Some(300),
        until_ms: None,
    }];
    let joined = join_all(vec![earlier.clone(), later.clone()]);
    let exact = Outage {
        from_ms: 59_300,
        to_ms: Some(60_300),
        ..expected
    };
    assert_eq!(joined[0].state.as_ref().unwrap().outages, [exact]);
    later.state.as_mut().unwrap().outages.clear();
    // Before the handover, the guest runs at the source.
    earlier.state.as_mut().unwrap().stage = Stage::Source(SourceStage::Owned);
    let joined = join_all(vec![earlier, later]);
    assert_eq!(joined[0].state.as_ref().unwrap().outages, []);
}

/// As a dashboard does that follows the later engine.
#[test]
fn records_that_follow_are_joined_too() {
    let [earlier, later] = both();
    let expected = join_all(vec![earlier.clone(), later.clone()]).remove(0);
    let mut begun = later.clone();
    (begun.end, begun.state) = (None, Some(postcopy(0, 0)));
    begun.samples.truncate(1);
    begun.frames.truncate(1);
    begun.notices.clear();
    let (recording, continued) = Continued::join(earlier, begun);
    let mut follower = Recorder::following(recording);
    let state = later.state.clone().unwrap();
    for record in [
        StatusRecord::State(Box::new(state)),
        StatusRecord::Notice(later.notices[0].clone()),
        StatusRecord::End(later.end.clone().unwrap()),
    ] {
        follower.apply(continued.record(record));
    }
    let followed = follower.into_recording();
    assert_eq!(followed.state, expected.state);
    assert_eq!(followed.end, expected.end);
    assert_eq!(followed.notices, expected.notices);
    assert_eq!(followed.engines, expected.engines);
    // The rate is that of the later engine, not that of all its bytes at once.
    let rates: Vec<_> = followed
        .samples
        .iter()
        .map(|s| s.bytes_per_second)
        .collect();
    let own: Vec<_> = later.samples.iter().map(|s| s.bytes_per_second).collect();
    assert!((rates[3] - own[1]).abs() < 1e-9, "{rates:?} {own:?}");
}

#[test]
fn a_clock_that_was_set_back_does_not_mix_the_engines() {
    let [earlier, mut later] = both();
    later.migration.started_unix_ms = STARTED + 10;
    let joined = join_all(vec![earlier, later]).remove(0);
    assert_eq!(joined.engines[1].begun_ms, 5000);
    let times: Vec<_> = joined.samples.iter().map(|sample| sample.at_ms).collect();
    assert_eq!(times, [0, 4900, 5000, 7000]);
}

/// The destination's map counts as sent what is neither missing nor arrived since its engine began.
#[test]
fn what_arrived_before_is_not_counted_as_received_in_pre_copy() {
    let [mut earlier, mut later] = both();
    for recording in [&mut earlier, &mut later] {
        recording.migration.side = Side::Destination;
    }
    let map = &mut later.state.as_mut().unwrap().map;
    // Of 512 pages none is missing, and one arrived: 511, five of them by requests before.
    map.sent = vec![511, 0];
    let joined = join_all(vec![earlier, later]).remove(0);
    let map = &joined.state.as_ref().unwrap().map;
    assert_eq!((map.sent[0], map.by_request[0]), (506, 6));
    assert_eq!(map.sent[0] + map.by_request[0] + map.background[0], 512);
}

#[test]
fn other_recordings_stay_apart() {
    let [earlier, later] = both();
    let mut other_side = later.clone();
    other_side.migration.side = Side::Destination;
    let mut other = later.clone();
    other.migration.id = "ff".into();
    let mut begun_again = later.clone();
    begun_again.migration.resumed = false;
    for apart in [other_side, other, begun_again] {
        let all = vec![earlier.clone(), apart];
        assert_eq!(join_all(all.clone()), all);
    }
    assert_eq!(join_all(Vec::new()), []);
    // A file that is there twice.
    assert_eq!(join_all(vec![earlier.clone(), earlier.clone()]), [earlier]);
}

#[test]
fn a_joined_recording_is_bounded() {
    let long = |pid, later_ms| {
        let states: Vec<_> = (0..1000)
            .map(|tenth| postcopy(tenth * 100, tenth))
            .collect();
        let mut recording = recorded(pid, later_ms, &states);
        let notice = Notice {
            at_ms: 1,
            text: "a notice".into(),
        };
        recording.notices = vec![notice; 200];
        let state = recording.state.as_mut().unwrap();
        state.outages = vec![
            Outage {
                from_ms: 1,
                before_ms: 0,
                to_ms: Some(2),
                until_ms: None,
            };
            100
        ];
        recording
    };
    let joined = join_all(vec![long(1, 0), long(2, 200_000), long(3, 400_000)]).remove(0);
    assert!(joined.samples.len() <= 1200 && joined.samples.len() > 600);
    assert!(joined.frames.len() <= 32 && joined.frames.len() > 16);
    assert_eq!(joined.notices.len(), 200);
    assert_eq!(joined.state.unwrap().outages.len(), 100);
    assert_eq!(joined.engines.len(), 3);
}
