//! A guest that is migrated and checked.

use crate::guests::disk::{check_disks, with_disk};
use crate::moves::migration::FinishedMigration;
use crate::{
    Exits, JsonReport, LONG, Migration, MigrationPlan, QemuState, TestEnv, eventually, log,
};
use hikkoshi_account::Side;
use hikkoshi_lab::{GuestReport, Vm, VmConfig, never_retried};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// How long a guest may boot without a word on its console; a busy host needs some 20 s. An
/// emulated guest with four processors printed nothing for 300 s in one run of CI, before hikkoshi
/// was connected; the cause is not known. It is booted once more, and its registers are logged.
const SILENT_BOOT: Duration = Duration::from_secs(100);

/// A guest, on whichever machine it runs. On drop, the machine ends and its disks are checked.
#[derive(Debug)]
pub struct Guest<'a> {
    env: &'a TestEnv,
    config: VmConfig,
    vm: Arc<Vm>,
    /// The destination of each attempt.
    destinations: Vec<Weak<Vm>>,
}

impl<'a> Guest<'a> {
    /// Boots the guest, with a disk if it can use one, and waits until its workload runs.
    ///
    /// # Panics
    /// When it does not boot.
    pub fn boot(env: &'a TestEnv, config: VmConfig) -> Self {
        let config = match config.is_nano() {
            true => config,
            false => with_disk(env, config),
        };
        Self::boot_without_extra_disk(env, config)
    }

    /// Boots the guest without a disk, unless its configuration has one.
    ///
    /// # Panics
    /// When it does not boot.
    pub fn boot_without_extra_disk(env: &'a TestEnv, config: VmConfig) -> Self {
        let mut guest = Self::start(env, config.clone());
        if let Err(error) = guest.vm.wait_output_since_boot(SILENT_BOOT) {
            log(format!("the guest is booted again: {error}"));
            guest.vm.kill();
            drop(guest);
            guest = Self::start(env, config);
        }
        guest.assert_accelerator();
        guest.vm.wait_ready().unwrap();
        guest.wait_for_progress();
        guest
    }

    /// Checks that QEMU uses the accelerator that the guest's configuration says.
    fn assert_accelerator(&self) {
        let kvm = self.vm.uses_kvm().unwrap();
        assert_eq!(kvm, self.config.uses_kvm(), "KVM on {}", self.vm.name());
    }

    /// Starts the machine without waiting for the guest.
    ///
    /// # Panics
    /// When it cannot be started.
    pub fn start(env: &'a TestEnv, config: VmConfig) -> Self {
        let vm = Arc::new(config.start(env.lab(), "host0").unwrap());
        Self {
            env,
            config,
            vm,
            destinations: Vec::new(),
        }
    }

    /// The machine that the guest runs on.
    pub fn vm(&self) -> &Arc<Vm> {
        &self.vm
    }

    /// The machine's configuration.
    pub fn config(&self) -> &VmConfig {
        &self.config
    }

    /// Starts a migration.
    ///
    /// # Panics
    /// When the destination or an engine cannot be started.
    pub fn start_migration(&mut self, plan: &MigrationPlan) -> Migration {
        let number = self.destinations.len() + 1;
        let migration = Migration::start(self.env, &self.vm, &self.config, plan, number);
        let destination = Arc::downgrade(&migration.destination);
        self.destinations.push(destination);
        migration
    }

    /// Migrates the guest. Both engines must succeed, and the guest must be healthy at the
    /// destination.
    ///
    /// # Panics
    /// When a check fails.
    pub fn migrate(&mut self, plan: &MigrationPlan) -> JsonReport {
        let (exits, finished) = self.start_migration(plan).wait();
        self.complete_migration(&exits, finished, "running")
    }

    /// Checks the results of a migration that has succeeded, and continues on the destination,
    /// which must be in state `state`. A running guest is checked, too.
    ///
    /// # Panics
    /// When a check fails.
    pub fn complete_migration(
        &mut self,
        exits: &Exits,
        finished: FinishedMigration,
        state: &str,
    ) -> JsonReport {
        let mode = finished.plan.mode;
        exits.assert_source(0, &[]);
        exits.assert_destination(0, &[]);
        let said = match state {
            "running" => ["the guest runs at the destination", "the guest runs here"],
            _ => [
                "the guest is at the destination, paused as before",
                "the guest is here, paused as before",
            ],
        };
        assert!(exits.migrate.stdout.contains(said[0]), "{exits:?}");
        assert!(exits.receive.stdout.contains(said[1]), "{exits:?}");
        let [Some(json_report), Some(there)] = &exits.json_reports else {
            panic!("a JSON report is missing: {exits:?}");
        };
        for (side, json_report) in [(Side::Source, json_report), (Side::Destination, there)] {
            json_report.check(side, mode, self.config.memory().mib());
        }
        assert_eq!(json_report.postcopy, there.postcopy);
        // The destination's time lies within the source's: a message of the source begins it, and
        // one of the destination ends the source's.
        assert!(
            there.downtime_ms.unwrap() <= json_report.downtime_ms.unwrap(),
            "{json_report:?} {there:?}"
        );
        log(format!(
            "host{} → host{}, {json_report}",
            finished.number - 1,
            finished.number
        ));
        // QEMU itself refuses to run a second copy.
        let resumed = self.vm.cont();
        assert!(resumed.is_err(), "the source runs the guest as well");
        assert_eq!(self.vm.status().unwrap(), "paused");
        assert_eq!(finished.destination.status().unwrap(), state);
        for vm in [&self.vm, &finished.destination] {
            QemuState::assert_no_userfaultfd(vm);
        }
        self.vm = finished.destination;
        if state == "running" {
            self.assert_healthy();
        }
        json_report.clone()
    }

    /// Continues on the destination of a migration that was interrupted and resumed. The last two
    /// engines must have succeeded, and nothing may be left behind.
    ///
    /// # Panics
    /// When a check fails.
    pub fn complete_resumed_migration(
        &mut self,
        exits: &Exits,
        finished: FinishedMigration,
        what: &str,
    ) {
        exits.assert_source(0, &[]);
        exits.assert_destination(0, &[]);
        self.move_to_destination(finished, what);
    }

    /// Continues on the destination of a migration that has ended, whatever the exits of its
    /// engines. Nothing may be left behind.
    ///
    /// # Panics
    /// When a check fails.
    pub fn move_to_destination(&mut self, finished: FinishedMigration, what: &str) {
        let mut vms = vec![&finished.destination];
        if self.vm.exit_status().is_none() {
            assert_ne!(self.vm.status().unwrap(), "running");
            vms.push(&self.vm);
        }
        assert_eq!(finished.destination.status().unwrap(), "running");
        for vm in vms {
            QemuState::assert_no_userfaultfd(vm);
        }
        self.vm = finished.destination;
        self.assert_healthy();
        log(format!(
            "{what}: the guest is at the destination and healthy"
        ));
    }

    /// Checks the results of a migration that has failed: the guest runs at the source and is
    /// healthy, and its QEMU is unchanged. The destination's QEMU ends.
    ///
    /// # Panics
    /// When a check fails.
    pub fn assert_stayed(&mut self, finished: FinishedMigration, what: &str) {
        eventually("the guest to run at the source", || {
            match self.vm.status().unwrap().as_str() {
                "running" => Ok(()),
                other => Err(other.to_owned()),
            }
        });
        if finished.answers && finished.destination.status().unwrap_or_default() == "running" {
            never_retried("the guest runs twice");
            panic!("the guest runs twice");
        }
        finished.before.assert_unchanged(&self.vm);
        self.assert_healthy();
        let there = finished.destination.name();
        let lines = self.vm.console().since(finished.lines);
        if lines.iter().any(|line| &*line.vm == there) {
            never_retried("the guest stayed at the source, and ran at the destination");
            panic!("the guest ran at the destination");
        }
        log(format!(
            "{what}: the guest stayed at the source and is healthy"
        ));
        drop(finished);
    }

    /// Checks that the workload makes progress by the configured accelerator, and that no page is
    /// or was wrong.
    ///
    /// # Panics
    /// When a page was wrong, or the workload has stopped.
    pub fn assert_healthy(&self) {
        self.assert_accelerator();
        self.wait_for_progress();
        let verdict = self.vm.sweep(LONG).unwrap();
        assert!(verdict.ok && verdict.bad == 0, "{verdict:?}");
        for line in self.vm.console().lines() {
            let good = match &line.report {
                GuestReport::Bad(_) | GuestReport::Failed(_) | GuestReport::Stopped => false,
                GuestReport::Verify(verify) => verify.ok && verify.bad == 0,
                GuestReport::Dirty(dirty) => dirty.ok,
                _ => !line.text.contains("Kernel panic"),
            };
            assert!(good, "{}: {}", line.vm, line.text);
        }
    }

    /// Waits until the workload has made progress on this machine.
    ///
    /// # Panics
    /// When it makes none.
    fn wait_for_progress(&self) {
        // The interval of the first report may have begun earlier.
        let mut lines = 0;
        let first = self.vm.console().len();
        self.vm
            .wait_report("work", first, LONG, |report| {
                let work = match report {
                    GuestReport::Verify(verify) => verify.latency.accesses > 0,
                    GuestReport::Dirty(dirty) => dirty.latency.accesses > 0,
                    GuestReport::Idle(_) | GuestReport::Scan(_) => true,
                    _ => false,
                };
                lines += u32::from(work);
                (lines == 2).then_some(())
            })
            .unwrap();
        if !self.config.disks().is_empty() {
            let work = |report: &GuestReport| match report {
                GuestReport::Disk(work) => (work.reads + work.writes > 0).then_some(()),
                _ => None,
            };
            self.vm
                .wait_report("work on the disk", first, LONG, work)
                .unwrap();
        }
    }

    /// Continues with this configuration, to which the guest was moved: with other disks.
    pub fn set_config(&mut self, config: VmConfig) {
        self.config = config;
    }

    /// Continues on a machine to which the test has moved the guest.
    pub fn set_vm(&mut self, vm: Arc<Vm>) {
        self.vm = vm;
    }
}

impl Drop for Guest<'_> {
    fn drop(&mut self) {
        // A thread that watches a QEMU may keep it, and with it the lock of its disk, until this
        // process has ended. A QEMU that has changed its user does not end with this process
        // (PR_SET_PDEATHSIG(2const)).
        let others = self.destinations.iter().filter_map(Weak::upgrade);
        for vm in others.filter(|vm| !Arc::ptr_eq(vm, &self.vm)) {
            vm.kill();
        }
        // A failed test has reported enough.
        if !std::thread::panicking() {
            check_disks(&self.vm, &self.config);
        }
        self.vm.kill();
    }
}

/// Asserts that the guest does not run there. A QEMU whose main loop waits for a page of a broken
/// post-copy does not answer; [`SplitBrainWatcher`](crate::SplitBrainWatcher) checks that it has
/// not started to run either.
///
/// # Panics
/// When it runs.
pub fn assert_not_running(vm: &Arc<Vm>) {
    let (sender, status) = std::sync::mpsc::channel();
    let asked = Arc::clone(vm);
    // On a separate thread, because the lab waits much longer for an answer.
    std::thread::spawn(move || drop(sender.send(asked.status())));
    if let Ok(Ok(status)) = status.recv_timeout(Duration::from_secs(3)) {
        assert_ne!(status, "running", "{}", vm.name());
    }
}
