//! Migrations that are interrupted after commit, and resumed by new engines.

use crate::{Breakpoint, Exit, Guest, LONG, Migration, MigrationPlan};

/// What is cut or killed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Victim {
    /// All links.
    Links,
    /// The source's engine.
    Source,
    /// The destination's engine.
    Destination,
    /// Both engines.
    Both,
    /// The source's engine and its QEMU.
    SourceAndQemu,
}

impl Victim {
    /// Interrupts a migration at a breakpoint, and resumes it with new engines. The guest must be
    /// healthy at the destination afterwards.
    ///
    /// # Panics
    /// When a check fails.
    pub fn interrupt(self, guest: &mut Guest<'_>, plan: MigrationPlan, at: Breakpoint) {
        let what = format!("{self:?} interrupted {at}");
        let mut migration = guest.start_migration(&plan.hold_at(at));
        migration.wait_held();
        if matches!(self, Self::Source | Self::Both | Self::SourceAndQemu) {
            migration.migrate.kill();
        }
        if matches!(self, Self::Destination | Self::Both) {
            migration.receive.kill();
        }
        if self == Self::SourceAndQemu {
            guest.vm().kill();
            guest.vm().wait_exit(LONG).unwrap();
        }
        migration.relay().cut();
        migration.wait_for_interrupted_engines();
        migration.resume_receive(&[]);
        migration.resume_migrate(&[]);
        let (exits, finished) = migration.wait();
        guest.complete_resumed_migration(&exits, finished, &what);
    }
}

impl Migration {
    /// Waits until both engines, source and destination, have exited. Those that were not killed
    /// print how to resume.
    ///
    /// # Panics
    /// When they do not, or when a journal is missing.
    pub fn wait_for_interrupted_engines(&mut self) -> [Exit; 2] {
        let receive = self.receive.wait();
        if receive.code.is_some() {
            receive.assert(3, &["o data is lost", "hikkoshi receive --resume="]);
        }
        let migrate = self.migrate.wait();
        if migrate.code.is_some() {
            migrate.assert(3, &["o data is lost", "hikkoshi migrate --resume="]);
        }
        assert_eq!(self.journals().len(), 2, "one journal per side");
        [migrate, receive]
    }
}
