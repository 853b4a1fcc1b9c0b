//! Guests move and nodes fail at random.
//!
//! The seed is printed, and can be set by `HIKKOSHI_SEED`; `HIKKOSHI_ROUNDS` is the number of
//! rounds.

use crate::laboratory::{Laboratory, Resource};
use hikkoshi_lab::cluster::Cluster;
use hikkoshi_tests::{Random, eventually, log};
use rustix::process::{Pid, Signal, kill_process};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const NAMES: [&str; 3] = ["g1", "g2", "g3"];

/// What happens in a round.
#[derive(Clone, Copy, Debug)]
enum Event {
    Nothing,
    SourcesEngine,
    DestinationsEngine,
    Agents,
    Daemons,
    SourcesPower,
    DestinationsPower,
    SourcesCable,
    DestinationsCable,
    Stop,
    OtherOrder,
}

const EVENTS: [Event; 11] = [
    Event::Nothing,
    Event::SourcesEngine,
    Event::DestinationsEngine,
    Event::Agents,
    Event::Daemons,
    Event::SourcesPower,
    Event::DestinationsPower,
    Event::SourcesCable,
    Event::DestinationsCable,
    Event::Stop,
    Event::OtherOrder,
];

impl Event {
    /// Whether guests may have been started again afterwards.
    fn restarts(self) -> bool {
        matches!(
            self,
            Self::SourcesPower
                | Self::DestinationsPower
                | Self::SourcesCable
                | Self::DestinationsCable
                | Self::Stop
                // Pacemaker does not move a guest on whose `migrate_to` has just ended.
                | Self::OtherOrder
        )
    }

    /// The node that is fenced.
    fn fences<'a>(self, from: &'a str, to: &'a str) -> Option<&'a str> {
        match self {
            Self::SourcesPower | Self::SourcesCable => Some(from),
            Self::DestinationsPower | Self::DestinationsCable => Some(to),
            _ => None,
        }
    }
}

fn seed() -> u64 {
    let given = std::env::var("HIKKOSHI_SEED").ok();
    given.map_or_else(
        || {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
            u64::from(now.subsec_nanos())
        },
        |text| text.parse().expect("HIKKOSHI_SEED is a number"),
    )
}

fn kill(laboratory: &Laboratory, node: &str, words: &[&str]) {
    for process in laboratory.node(node).processes_with(words) {
        let _ = kill_process(Pid::from_raw(process.cast_signed()).unwrap(), Signal::KILL);
    }
}

/// A guest moves, and something happens meanwhile. Afterwards all guests run, whole, each once.
#[test]
#[ignore = "a cluster in random rounds: make test-cluster, and fifty of them: make drills"]
fn random_rounds() {
    let rounds = std::env::var("HIKKOSHI_ROUNDS").ok();
    let rounds = rounds.map_or(3, |text| {
        text.parse::<u32>().expect("HIKKOSHI_ROUNDS is a number")
    });
    let seed = seed();
    log(format!("HIKKOSHI_SEED={seed}"));
    let mut random = Random::new(seed);
    let modes = ["hybrid", "postcopy", "precopy"];
    let resources = NAMES.iter().zip(modes).map(|(name, mode)| {
        let params = format!("mode={mode} bandwidth=6M options=\"--compress off\" refresh=2");
        let mut resource = Resource::new(name, 16).params(&params);
        resource.config = resource.config.workload(Resource::workload(16).rate(300));
        resource
    });
    let laboratory = Laboratory::start(resources.collect());
    laboratory.cluster.power().set_returns(true);
    for round in 1..=rounds {
        let runs = NAMES.map(|name| laboratory.guest(name).record().unwrap().0);
        let fenced = laboratory.cluster.power().fenced().len();
        let pick = |random: &mut Random, count: usize| {
            usize::try_from(random.below(count as u64)).unwrap()
        };
        let name = NAMES[pick(&mut random, NAMES.len())];
        let from = laboratory.where_is(name);
        let others = Cluster::NAMES.map(String::from);
        let others: Vec<_> = others.iter().filter(|node| **node != from).collect();
        let to = others[pick(&mut random, others.len())].clone();
        let event = EVENTS[pick(&mut random, EVENTS.len())];
        let after = random.part_of(Duration::from_secs(8));
        log(format!(
            "round {round}: {name} from {from} to {to}, {event:?} after {after:.1?}"
        ));
        laboratory.move_to(name, &to);
        std::thread::sleep(after);
        match event {
            Event::Nothing => {}
            Event::SourcesEngine => kill(&laboratory, &from, &["migrate"]),
            Event::DestinationsEngine => kill(&laboratory, &to, &["receiver"]),
            Event::Agents => kill(&laboratory, &from, &["ocf-agent", "migrate_to"]),
            Event::Daemons => {
                kill(&laboratory, &from, &["hikkoshi", "daemon"]);
                kill(&laboratory, &to, &["hikkoshi", "daemon"]);
            }
            Event::SourcesPower => laboratory.node(&from).power_off(),
            Event::DestinationsPower => laboratory.node(&to).power_off(),
            Event::SourcesCable => laboratory.cluster.cut(&from).unwrap(),
            Event::DestinationsCable => laboratory.cluster.cut(&to).unwrap(),
            Event::Stop => {
                laboratory.order(&format!("crm resource stop {name}"));
                laboratory.assert_stopped(name);
                laboratory.order(&format!("crm resource start {name}"));
            }
            Event::OtherOrder => laboratory.move_to(name, &from),
        }
        if let Some(node) = event.fences(&from, &to) {
            laboratory.wait("the node to be fenced", |_| {
                laboratory.cluster.power().fenced().len() > fenced
            });
            laboratory.cluster.plug(node).unwrap();
        }
        laboratory.wait("all nodes to be online, and all guests to run", |status| {
            let runs = |name: &&str| {
                let resource = status.resource(name);
                resource
                    .nodes
                    .first()
                    .is_some_and(|on| resource.runs_on(on))
                    // The record of a monitor that was cancelled can stay.
                    && matches!(resource.pending.as_deref(), None | Some("Monitoring"))
            };
            status.online().len() == Cluster::NAMES.len() && NAMES.iter().all(runs)
        });
        for (name, before) in NAMES.iter().zip(runs) {
            let guest = laboratory.guest(name);
            // A guest that was started may still boot.
            eventually("the guest's workload", || {
                guest
                    .wait_beat(Duration::from_secs(60))
                    .map_err(|error| error.to_string())
            });
            let now = guest.record().unwrap().0;
            let most = if event.restarts() { before + 1 } else { before };
            assert!(
                (before..=most).contains(&now),
                "{name}: {before} to {now}: {:?}\n{}",
                guest.ran(),
                laboratory.cluster.report()
            );
            laboratory.assert_whole(name, now);
        }
        laboratory.order(&format!("crm_resource --clear --resource {name}"));
    }
}
