//! Harm done to a migration at one step after the other, and what must come of it.

use crate::{Arrived, Ends, Guest, Kind, Moment, Scene, Trip, Via, When};

use hikkoshi_lab::{VmConfig, Workload};
use std::fmt;

/// What happens to a migration. All of it before *commit*: the source's guest runs on, and can be
/// moved later.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Harm {
    /// All links break.
    LinksCut,
    /// `hikkoshi migrate` is killed, and its links end with it.
    SourceKilled,
    /// `hikkoshi receive` is killed, and its links end with it.
    DestinationKilled,
    /// The destination's QEMU is killed, and the engines find out.
    DestinationQemuKilled,
}

impl fmt::Display for Harm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::LinksCut => "links cut",
            Self::SourceKilled => "source engine killed",
            Self::DestinationKilled => "destination engine killed",
            Self::DestinationQemuKilled => "destination QEMU killed",
        })
    }
}

/// A guest that has enough to do for a migration to be one, and leaves the processor to others.
pub fn busy() -> VmConfig {
    VmConfig::new().workload(Workload::verify(32).rate(10_000).option("every_ms", 200))
}

/// Does it at each of these moments of a migration by that mode: both sides must say where the
/// guest is, and it must be there, sound. In the end the guest is moved.
///
/// # Panics
/// When anything is not as it should be.
pub fn harmed_at_each(
    harm: Harm,
    via: Via,
    steps: impl IntoIterator<Item = (&'static str, Moment)>,
) {
    let scene = Scene::new();
    let mut guest = Guest::boot(&scene, busy());
    let mut last = "hybrid";
    for (mode, moment) in steps {
        let trip = Trip::by(mode).via(via.clone());
        let (ends, arrived) = harm.done(&mut guest, trip, moment);
        harm.judge(&ends, moment);
        guest.stay(arrived, &format!("{mode}, {harm} {moment}"));
        last = mode;
    }
    guest.travel(&Trip::by(last).via(via));
}

impl Harm {
    fn done(self, guest: &mut Guest<'_>, trip: Trip, moment: Moment) -> (Ends, Arrived) {
        if self == Self::LinksCut {
            return guest.set_out(&trip.cut(moment)).wait_for_source_first();
        }
        let mut attempt = guest.set_out(&trip.hold(moment));
        attempt.wait_held();
        match self {
            Self::LinksCut => attempt.relay().cut(),
            Self::SourceKilled => {
                attempt.migrate.kill();
                attempt.relay().cut();
                return attempt.wait_for_source_first();
            }
            Self::DestinationKilled => {
                attempt.receive.kill();
                attempt.relay().cut();
            }
            Self::DestinationQemuKilled => {
                attempt.destination.kill();
                attempt.relay().let_go();
            }
        }
        attempt.wait()
    }

    fn judge(self, ends: &Ends, moment: Moment) {
        let at_source = "the guest runs on at the source";
        match self {
            Self::SourceKilled => assert_eq!(ends.migrate.code, None, "killed"),
            // Not which of the calls on its process has failed for that.
            Self::DestinationQemuKilled => {
                let ended = ["virtual machine (process ", ") has ended"];
                ends.assert_source(1, &[at_source, ended[0], ended[1]]);
                ends.assert_destination(1, &ended);
            }
            _ => ends.assert_source(1, &[at_source]),
        }
        match (self, moment.kind) {
            (Self::DestinationKilled, _) => assert_eq!(ends.receive.code, None, "killed"),
            (Self::DestinationQemuKilled, _) => {}
            // From its word on that it is ready the destination cannot know.
            (_, Kind::Ready) => ends.assert_destination(3, &["nothing of it is lost"]),
            // It may have come to that word before it saw the end of its links.
            (_, Kind::Switch) if moment.when == When::After && ends.receive.code == Some(3) => {
                ends.assert_destination(3, &["nothing of it is lost"]);
            }
            _ => ends.assert_destination(1, &["the guest stays at the source"]),
        }
    }
}
