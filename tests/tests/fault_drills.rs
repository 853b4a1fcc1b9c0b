//! Fault drills: at random moments of post-copy links are cut, engines are killed, one or both, and
//! the source's QEMU, too. Each time it is gone on, and in the end the guest has all of its pages.
//! Half of it is done to links in plain text, half to TLS.
#![allow(clippy::unwrap_used)] // a test's failure is the message

use hikkoshi_lab::{Link, Ram, Shape, VmConfig, Workload};
use hikkoshi_tests::{Attempt, Drill, Guest, LONG, Random, Scene, Side, Trip, Via, own_address};
use std::time::Duration;

/// Background pages take their time, so that post-copy lasts for all moments of a trip, and the
/// guest gets one page at a time, and no others near it sooner: it lacks some until the end.
const SLOWLY: [&str; 4] = ["--bandwidth", "16M", "--read-ahead=off", "--no-follow"];

/// Longer than any drill.
const PATIENT: [&str; 2] = ["--retry-for", "1h"];

/// Silence for that long is the end of a link.
const STALL: [&str; 2] = ["--stall-timeout", "1s"];

/// Said by the source when both engines are together again.
const AGAIN: &str = "the destination is there again";

/// A guest that goes on finding pages that are not there, and tells often how it is.
fn wanderer() -> VmConfig {
    let workload = Workload::verify(96).rate(500).option("every_ms", 50);
    VmConfig::new().workload(workload)
}

/// Every other trip goes over TLS, as between hosts by default; the others over these links.
fn by_turns(trip: Trip, number: u32, plain: Via) -> Trip {
    if number.is_multiple_of(2) {
        return trip.via(plain);
    }
    let address = match plain {
        Via::Address(address) => address,
        _ => own_address(),
    };
    trip.via(Via::Invitation(address))
        .receive_with(&["--invite"])
}

/// Who is killed.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Who {
    Source,
    Destination,
    Both,
}

impl Who {
    fn kill(self, attempt: &mut Attempt, random: &mut Random) {
        let source_first = random.below(2) == 0;
        for source in [source_first, !source_first] {
            if source && self != Self::Destination {
                attempt.migrate.kill();
            }
            if !source && self != Self::Source {
                attempt.receive.kill();
            }
        }
    }

    /// Kills it, and starts it again where it was; the other one waits. One time in three what was
    /// started is killed once more on its way.
    fn replaced(self, attempt: &mut Attempt, random: &mut Random) -> Option<String> {
        let source = [&SLOWLY[..], &PATIENT].concat();
        let before = match self {
            Self::Destination => attempt.migrate.times_said(AGAIN),
            Self::Source | Self::Both => 0,
        };
        self.kill(attempt, random);
        let twice = random.below(3) == 0;
        if twice {
            if self != Self::Source {
                attempt.start_receive_again(&PATIENT);
            }
            if self != Self::Destination {
                attempt.resume_migrate(&source);
            }
            std::thread::sleep(random.part_of(Duration::from_millis(20)));
            self.kill(attempt, random);
        }
        if attempt.has_ended_well() || attempt.have_journals() != [true; 2] {
            return None;
        }
        if self != Self::Source {
            attempt.resume_receive(&PATIENT);
        }
        if self != Self::Destination {
            attempt.resume_migrate(&source);
        }
        attempt
            .has_said(Side::Source, AGAIN, before + 1)
            .then(|| format!("replaced{}", if twice { ", killed again" } else { "" }))
    }

    /// Kills it; the other one leaves. Both are started again, to meet somewhere else with another
    /// number of links.
    fn elsewhere(self, attempt: &mut Attempt, random: &mut Random) -> Option<String> {
        self.kill(attempt, random);
        let [migrate, receive] = [attempt.migrate.wait(), attempt.receive.wait()];
        if attempt.has_ended_well() || attempt.have_journals() != [true; 2] {
            return None;
        }
        if migrate.code.is_some() {
            migrate.assert(3, &["othing of it is lost", "hikkoshi migrate --resume="]);
        }
        if receive.code.is_some() {
            receive.assert(3, &["nothing of it is lost", "hikkoshi receive --resume="]);
        }
        let number = random.number();
        let address = match random.below(2) {
            0 => own_address(),
            _ => format!(
                "unix:{}/{number:x}",
                attempt.journal_folders()[0].parent().unwrap().display()
            ),
        };
        let links = 1 + random.below(6);
        attempt.meet_at(&address);
        attempt.resume_receive(&[]);
        let links_word = format!("--links={links}");
        attempt.resume_migrate(&[&SLOWLY[..], &[&links_word]].concat());
        let family = address.split(':').next().unwrap_or_default();
        let family = if family == "unix" { "unix" } else { "TCP" };
        attempt
            .has_said(Side::Source, AGAIN, 1)
            .then(|| format!("both anew, {family}, links: {links}"))
    }
}

fn killed(what: &'static str, who: Who) {
    let scene = Scene::new();
    let mut guest = Guest::boot(&scene, wanderer());
    let mut drill = Drill::new(what);
    let patient = |number| {
        let trip = Trip::by("postcopy").with(&SLOWLY);
        let trip = trip.with(&PATIENT).receive_with(&PATIENT);
        by_turns(trip, number, Via::Unix)
    };
    drill.interrupt(&mut guest, (10, 5), patient, |attempt, random| {
        who.replaced(attempt, random)
    });
    let impatient = |number| by_turns(Trip::by("postcopy").with(&SLOWLY), number, Via::Tcp);
    drill.interrupt(&mut guest, (10, 5), impatient, |attempt, random| {
        who.elsewhere(attempt, random)
    });
    drill.finish();
}

#[test]
fn source_engine_killed() {
    killed("source engine killed", Who::Source);
}

#[test]
fn destination_engine_killed() {
    killed("destination engine killed", Who::Destination);
}

#[test]
fn both_engines_killed() {
    killed("both engines killed", Who::Both);
}

/// Ways to cut a line between two hosts.
#[derive(Clone, Copy, Debug)]
enum Cut {
    /// `ip link set … down`: nothing goes through, and one host knows.
    Down,
    /// `tc`: everything is dropped, and nobody is told.
    Dropped,
    /// Every connection is reset.
    Reset,
}

/// Longer than any packet's turn, and nothing fits in.
const NOTHING: Shape = Shape {
    rate_bits: 1000,
    burst_bytes: 1,
    latency: Duration::from_millis(1),
};

impl Cut {
    /// Cuts the line until both engines have noticed.
    fn done(self, link: &mut Link, attempt: &mut Attempt) -> Option<String> {
        const LOST: [&str; 2] = ["Trying to reach the destination", "Waiting for the source"];
        let (migrate, receive) = (&attempt.migrate, &attempt.receive);
        let before = [migrate.times_said(LOST[0]), receive.times_said(LOST[1])];
        let together = migrate.times_said(AGAIN);
        match self {
            Self::Down => link.cut().unwrap(),
            Self::Dropped => link.reshape(Some(NOTHING)).unwrap(),
            Self::Reset => link.reset_connections().unwrap(),
        }
        let noticed = attempt.has_said(Side::Source, LOST[0], before[0] + 1)
            && attempt.has_said(Side::Destination, LOST[1], before[1] + 1);
        match self {
            Self::Down => link.mend().unwrap(),
            Self::Dropped => link.reshape(None).unwrap(),
            Self::Reset => {}
        }
        let how = match self {
            Self::Down => "ip link down",
            Self::Dropped => "tc drops all",
            Self::Reset => "connections reset",
        };
        (noticed && attempt.has_said(Side::Source, AGAIN, together + 1)).then(|| how.to_owned())
    }
}

#[test]
fn links_cut() {
    let scene = Scene::new();
    let mut link = Link::new(None).unwrap();
    let mut guest = Guest::boot(&scene, wanderer());
    let mut drill = Drill::new("links cut");
    let patient = Trip::by("postcopy")
        .with(&SLOWLY)
        .with(&PATIENT)
        .receive_with(&PATIENT);
    let hosts = (link.source().clone(), link.destination().clone());
    let across = |number: u32| {
        let (from, to, address) = match number % 2 {
            0 => (&hosts.0, &hosts.1, Link::DESTINATION),
            _ => (&hosts.1, &hosts.0, Link::SOURCE),
        };
        let address = Via::Address(format!("{address}:7100"));
        let stalls = patient.clone().with(&STALL).receive_with(&STALL);
        by_turns(stalls, number, address).between(from, to)
    };
    let mut turn = [Cut::Down, Cut::Dropped, Cut::Reset].into_iter().cycle();
    drill.interrupt(&mut guest, (15, 8), across, |attempt, _| {
        turn.next().unwrap().done(&mut link, attempt)
    });
    // A relay that closes all of them.
    let closed = |number| by_turns(patient.clone(), number, Via::Tcp).relayed();
    drill.interrupt(&mut guest, (5, 3), closed, |attempt, _| {
        let together = attempt.migrate.times_said(AGAIN);
        attempt.relay().interrupt();
        attempt
            .has_said(Side::Source, AGAIN, together + 1)
            .then(|| "closed".to_owned())
    });
    drill.finish();
}

/// The same into huge pages, which arrive in pieces: those of unfinished ones come again.
#[test]
fn engines_killed_with_huge_pages() {
    let scene = Scene::new();
    // A request is for a whole huge page, and is not held back: the line has to be slow.
    let slow = Shape {
        rate_bits: 200_000_000,
        burst_bytes: 128 * 1024,
        latency: Duration::from_millis(50),
    };
    let link = Link::new(Some(slow)).unwrap();
    let mut guest = Guest::boot(&scene, wanderer());
    let mut drill = Drill::new("engines killed, huge pages");
    let trip = |number| {
        let trip = Trip::by("postcopy")
            .between(link.source(), link.destination())
            .to_like(wanderer().ram(Ram::Huge { mib: 256 }))
            .with(&PATIENT)
            .receive_with(&PATIENT);
        let address = Via::Address(format!("{}:7100", Link::DESTINATION));
        by_turns(trip, number, address)
    };
    drill.interrupt(&mut guest, (6, 3), trip, |attempt, random| {
        let all = [Who::Source, Who::Destination, Who::Both];
        let who = all[usize::try_from(random.below(3)).unwrap()];
        let how = who.replaced(attempt, random)?;
        Some(format!("{who:?} {how}"))
    });
    drill.finish();
}

/// The source's QEMU is killed, half of the time with its engine: the RAM file is enough.
#[test]
fn source_qemu_killed() {
    let scene = Scene::new();
    let mut guest = Guest::boot(&scene, wanderer());
    let mut drill = Drill::new("source QEMU killed");
    let trip = Trip::by("postcopy").with(&SLOWLY).receive_with(&PATIENT);
    let mut with_engine = false;
    for round in 0..4 {
        let trip = |_| by_turns(trip.clone(), round / 2, Via::Unix);
        drill.interrupt(&mut guest, (1, 1), trip, |attempt, _| {
            attempt.source().kill();
            attempt.source().wait_exit(LONG).unwrap();
            if attempt.has_ended_well() {
                return None;
            }
            with_engine = !with_engine;
            if !with_engine {
                return Some("QEMU only".to_owned());
            }
            attempt.migrate.kill();
            if attempt.has_ended_well() || attempt.have_journals() != [true; 2] {
                with_engine = false;
                return None;
            }
            attempt.resume_migrate(&SLOWLY);
            let again = attempt.has_said(Side::Source, AGAIN, 1);
            with_engine = again;
            again.then(|| "with its engine".to_owned())
        });
    }
    drill.finish();
}
