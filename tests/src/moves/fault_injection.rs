//! Faults injected at chosen steps of a migration, and their expected outcomes.

use crate::{
    Breakpoint, Exits, FinishedMigration, Guest, MessageKind, MigrationPlan, TestEnv, Transport,
    When,
};

use crate::log;
use crate::moves::fault_drill::table_path;
use hikkoshi_lab::{Vm, VmConfig, Workload};
use serde_json::json;
use std::fmt;

/// A fault injected before *commit*: the guest must continue to run at the source, and can be moved
/// later.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum InjectedFault {
    /// All links are cut.
    LinksCut,
    /// `hikkoshi migrate` is killed, which closes its links.
    SourceKilled,
    /// `hikkoshi receive` is killed, which closes its links.
    DestinationKilled,
    /// The destination's QEMU is killed, and the engines detect it.
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

/// A guest that writes enough to make a migration take time, and leaves processor time to others.
pub fn busy_guest() -> VmConfig {
    VmConfig::new().workload(Workload::verify(32).rate(10_000).option("every_ms", 200))
}

/// Injects the fault at each of these breakpoints; outside `make drills` at every second one, of
/// which the other half is covered by other faults at the same steps. Both sides must report where
/// the guest is, and the guest must be there and healthy. Migrates the guest in the end.
///
/// # Panics
/// When a check fails.
pub fn inject_at_each(
    fault: InjectedFault,
    transport: Transport,
    steps: impl IntoIterator<Item = (&'static str, Breakpoint)>,
) {
    let env = TestEnv::new();
    let mut guest = Guest::boot(&env, busy_guest());
    let mut last = "hybrid";
    let is_drill = table_path().is_some();
    let is_due = |number: usize| is_drill || (number + fault as usize).is_multiple_of(2);
    for (number, (mode, breakpoint)) in steps.into_iter().enumerate() {
        if !is_due(number) {
            log(format!(
                "{mode}, {fault} {breakpoint}: only in `make drills`"
            ));
            continue;
        }
        let plan = MigrationPlan::new(mode).transport(transport.clone());
        fault.interrupt(&mut guest, plan, breakpoint);
        last = mode;
    }
    guest.migrate(&MigrationPlan::new(last).transport(transport));
}

/// Checks that this QEMU serves no disk, unless it is just ending.
fn assert_no_exports(vm: &Vm) {
    if let Ok(exports) = vm.qmp().execute("query-block-exports", json!({})) {
        assert_eq!(exports, json!([]), "{}", vm.name());
    }
}

impl InjectedFault {
    /// Injects the fault. Both sides must report where the guest is, and it must run at the source.
    ///
    /// # Panics
    /// When a check fails.
    pub fn interrupt(self, guest: &mut Guest<'_>, plan: MigrationPlan, breakpoint: Breakpoint) {
        let what = format!("{}, {self} {breakpoint}", plan.mode);
        let (exits, finished) = self.inject(guest, plan, breakpoint);
        self.check_exits(&exits, breakpoint);
        // An engine that was not killed leaves nothing in a QEMU that lives.
        if exits.receive.code.is_some() && finished.destination.exit_status().is_none() {
            assert_no_exports(&finished.destination);
        }
        guest.assert_stayed(finished, &what);
    }

    fn inject(
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

    fn check_exits(self, exits: &Exits, breakpoint: Breakpoint) {
        let at_source = "runs at the source";
        match self {
            Self::SourceKilled => assert_eq!(exits.migrate.code, None, "killed"),
            // Which call on its process fails first is not defined.
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
            // After *ready*, the destination cannot know where the guest runs.
            (_, MessageKind::Ready) => exits.assert_destination(3, &["o data is lost"]),
            // The destination may have sent *ready* before it noticed the closed links.
            (_, MessageKind::Switch)
                if breakpoint.when == When::After && exits.receive.code == Some(3) =>
            {
                exits.assert_destination(3, &["o data is lost"]);
            }
            _ => {
                exits.assert_destination(1, &[]);
                // The source's reason may arrive before the failure is noticed here.
                let either = [
                    "the guest stays at the source",
                    "the source reports where it is",
                ];
                let reported = &exits.receive.stderr;
                assert!(
                    either.iter().any(|text| reported.contains(text)),
                    "{exits:?}"
                );
            }
        }
    }
}
