//! Harm done to a migration at one step after the other, and what must come of it.

use crate::{
    Breakpoint, Exits, FinishedMigration, Guest, MessageKind, MigrationPlan, TestEnv, Transport,
    When,
};

use hikkoshi_lab::{VmConfig, Workload};
use std::fmt;

/// What happens to a migration. All of it before *commit*: the source's guest runs on, and can be
/// moved later.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum InjectedFault {
    /// All links break.
    LinksCut,
    /// `hikkoshi migrate` is killed, and its links end with it.
    SourceKilled,
    /// `hikkoshi receive` is killed, and its links end with it.
    DestinationKilled,
    /// The destination's QEMU is killed, and the engines find out.
    DestinationQemuKilled,
}

impl fmt::Display for InjectedFault {
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
pub fn busy_guest() -> VmConfig {
    VmConfig::new().workload(Workload::verify(32).rate(10_000).option("every_ms", 200))
}

/// Does it at each of these moments of a migration by that mode: both sides must say where the
/// guest is, and it must be there, sound. In the end the guest is moved.
///
/// # Panics
/// When anything is not as it should be.
pub fn inject_at_each(
    harm: InjectedFault,
    transport: Transport,
    steps: impl IntoIterator<Item = (&'static str, Breakpoint)>,
) {
    let env = TestEnv::new();
    let mut guest = Guest::boot(&env, busy_guest());
    let mut last = "hybrid";
    for (mode, breakpoint) in steps {
        let plan = MigrationPlan::new(mode).transport(transport.clone());
        let (exits, finished) = harm.done(&mut guest, plan, breakpoint);
        harm.judge(&exits, breakpoint);
        guest.assert_stayed(finished, &format!("{mode}, {harm} {breakpoint}"));
        last = mode;
    }
    guest.migrate(&MigrationPlan::new(last).transport(transport));
}

impl InjectedFault {
    fn done(
        self,
        guest: &mut Guest<'_>,
        plan: MigrationPlan,
        breakpoint: Breakpoint,
    ) -> (Exits, FinishedMigration) {
        if self == Self::LinksCut {
            return guest
                .start_migration(&plan.cut_at(breakpoint))
                .wait_for_source_first();
        }
        let mut migration = guest.start_migration(&plan.hold_at(breakpoint));
        migration.wait_held();
        match self {
            Self::LinksCut => migration.relay().cut(),
            Self::SourceKilled => {
                migration.migrate.kill();
                migration.relay().cut();
                return migration.wait_for_source_first();
            }
            Self::DestinationKilled => {
                migration.receive.kill();
                migration.relay().cut();
            }
            Self::DestinationQemuKilled => {
                migration.destination.kill();
                migration.relay().release();
            }
        }
        migration.wait()
    }

    fn judge(self, exits: &Exits, breakpoint: Breakpoint) {
        let at_source = "the guest runs on at the source";
        match self {
            Self::SourceKilled => assert_eq!(exits.migrate.code, None, "killed"),
            // Not which of the calls on its process has failed for that.
            Self::DestinationQemuKilled => {
                let ended = ["virtual machine (process ", ") has ended"];
                exits.assert_source(1, &[at_source, ended[0], ended[1]]);
                exits.assert_destination(1, &ended);
            }
            _ => exits.assert_source(1, &[at_source]),
        }
        match (self, breakpoint.kind) {
            (Self::DestinationKilled, _) => assert_eq!(exits.receive.code, None, "killed"),
            (Self::DestinationQemuKilled, _) => {}
            // From its word on that it is ready the destination cannot know.
            (_, MessageKind::Ready) => exits.assert_destination(3, &["nothing of it is lost"]),
            // It may have come to that word before it saw the end of its links.
            (_, MessageKind::Switch)
                if breakpoint.when == When::After && exits.receive.code == Some(3) =>
            {
                exits.assert_destination(3, &["nothing of it is lost"]);
            }
            _ => exits.assert_destination(1, &["the guest stays at the source"]),
        }
    }
}
