//! What `migrate` and `migrate --resume` do in the same way: from an attached guest to the report.
//!
//! ```text
//! AttachedSource ── begin: guard, journal ─▶ SourceRun ── run: the engine, QEMU's end, report
//! ```

use std::io;
use std::sync::Arc;

use error_reporter::Report;
use hikkoshi_engine::{
    Account, CancelFlag, MigrateControl, MigrateError, SourceControl, SourceGuest, SourceOptions,
};
use hikkoshi_handover::SourceRecord;
use hikkoshi_link::Remote;
use hikkoshi_qemu::qmp::Monitor;
use hikkoshi_qemu::{QemuIdentity, QemuSource, RamFileSource, SourceReattachInfo};

use super::journal::SourceJournal;
use super::outcome::{self, SourceQemu};
use crate::args::{Migrate, MigrateOptions, Security};
use crate::commands::guard::GuardProcess;
use crate::commands::monitor;
use crate::commands::print_result::SourceExtras;
use crate::commands::resume_command::set_command;
use crate::journal::JournalFile;
use crate::output::exit::{Exit, ExitStatus};
use crate::output::reason::Reason;
use crate::security;
use crate::status::RunPublisher;

/// The guest that is moved, as far as it is left.
pub(super) enum AttachedGuest {
    Qemu(Box<QemuSource>),
    /// QEMU has ended, and has left the guest's memory in files.
    Files(Box<RamFileSource>),
}

impl AttachedGuest {
    fn source_guest(&mut self) -> &mut dyn SourceGuest {
        match self {
            Self::Qemu(guest) => &mut **guest,
            Self::Files(guest) => &mut **guest,
        }
    }

    fn qemu(&mut self) -> Option<&mut QemuSource> {
        match self {
            Self::Qemu(guest) => Some(guest),
            Self::Files(_) => None,
        }
    }
}

/// A guest that is attached, and the locked journal of its migration.
pub(super) struct AttachedSource<'a> {
    pub args: &'a Migrate,
    pub publisher: &'a RunPublisher,
    pub options: MigrateOptions,
    /// Where the guest goes, and how the links are protected.
    pub remote: Remote,
    pub security: Security,
    pub monitor: Arc<dyn Monitor>,
    pub guest: AttachedGuest,
    pub info: SourceReattachInfo,
    pub file: JournalFile,
    /// What the journal has of the engine: `None` for a migration that begins now.
    pub record: Option<SourceRecord>,
    /// What was measured to choose the mode.
    pub auto: Option<&'a hikkoshi_account::Auto>,
}

/// A migration whose guest is restored if this process is killed.
///
/// The fields are dropped in this order: at its end the guard locks the journal, which has to be
/// free by then.
pub(super) struct SourceRun<'a> {
    args: &'a Migrate,
    publisher: &'a RunPublisher,
    options: MigrateOptions,
    remote: Remote,
    monitor: Arc<dyn Monitor>,
    identity: QemuIdentity,
    auto: Option<&'a hikkoshi_account::Auto>,
    guest: AttachedGuest,
    journal: Arc<SourceJournal>,
    _guard: Option<GuardProcess>,
}

impl<'a> AttachedSource<'a> {
    /// Starts the guard, and prepares the journal.
    ///
    /// # Errors
    /// What `failed` makes of the error. Nothing was changed.
    pub(super) fn begin(
        mut self,
        failed: impl Fn(Reason, &io::Error) -> Exit,
    ) -> Result<SourceRun<'a>, Exit> {
        let identity = self.info.identity.clone();
        let is_new = self.record.is_none();
        let ram = self.guest.source_guest().ram();
        let nameless = identity.nameless_files(&ram);
        // If the guest comes back and this engine is killed, the guest must not stay stopped.
        let is_needed = self.guest.qemu().is_some() || !nameless.is_empty();
        let guard = is_needed.then(|| GuardProcess::start(self.file.path(), &nameless));
        let guard = guard.transpose().map_err(|error| {
            let what = format!("starting the guard process: {}", Report::new(&error));
            failed(Reason::System, &io::Error::other(what))
        })?;
        let journal = SourceJournal::new(
            self.file,
            self.remote.clone(),
            self.security.plaintext,
            self.options.clone(),
            self.info,
            self.record,
        );
        let journal = match is_new {
            true => journal.noting(ram),
            false => journal,
        };
        let journal = Arc::new(journal);
        if let (true, Some(qemu)) = (is_new, self.guest.qemu()) {
            let undo_journal = Arc::clone(&journal);
            qemu.on_undo_record(move |record| undo_journal.set_undo(record))
                .map_err(|error| {
                    let what = format!("creating the journal: {}", Report::new(&error));
                    failed(Reason::Journal, &io::Error::other(what))
                })?;
        }
        self.publisher.set_guest(&monitor::guest_name(&identity));
        self.publisher.set_monitor(&identity.monitor);
        security::warn_of_readable_key(&self.security.certificates, &*self.publisher.observer());
        Ok(SourceRun {
            args: self.args,
            publisher: self.publisher,
            options: self.options,
            remote: self.remote,
            monitor: self.monitor,
            identity,
            auto: self.auto,
            guest: self.guest,
            journal,
            _guard: guard,
        })
    }
}

impl SourceRun<'_> {
    /// Moves the guest by `engine`, ends QEMU if that is wanted, and reports the outcome.
    pub(super) fn run(
        mut self,
        cancel: CancelFlag,
        engine: impl FnOnce(
            &mut dyn SourceGuest,
            &Remote,
            &SourceOptions,
            &MigrateControl,
        ) -> Result<Account, MigrateError>,
    ) -> Result<ExitStatus, Exit> {
        let control = SourceControl::new();
        self.publisher.set_control(&control);
        let control = MigrateControl {
            cancel,
            control,
            observer: self.publisher.observer(),
            journal: Arc::<SourceJournal>::clone(&self.journal),
        };
        let name = monitor::guest_name(&self.identity);
        let options = SourceOptions {
            set_command: set_command(&name, self.args.recovery.journals.given()),
            ..self.args.engine_options(&self.options)
        };
        let result = engine(self.guest.source_guest(), &self.remote, &options, &control);
        let quit = match &result {
            Ok(done) => outcome::end_qemu(
                self.guest.qemu(),
                &*self.monitor,
                &self.options,
                &self.identity,
                done.left_to_do.as_deref(),
            ),
            Err(error) => {
                outcome::end_qemu_of_lost(error, self.guest.qemu(), &self.options);
                None
            }
        };
        if quit.as_ref().is_some_and(|quit| quit.source_quit) {
            self.journal.remove();
        }
        let guest_now = outcome::guest_now(&result, self.guest.qemu());
        let has_ended =
            self.guest.source_guest().has_ended() || matches!(self.identity.process(), Ok(None));
        let qemu = SourceQemu {
            monitor: &self.identity.monitor,
            pid: (!has_ended).then_some(self.identity.pid),
            guest: guest_now,
            ran: self.identity.description.running,
        };
        let extras = SourceExtras {
            quit,
            auto: self.auto.cloned(),
        };
        outcome::report(self.publisher, result, self.journal.path(), &qemu, extras)
    }
}
