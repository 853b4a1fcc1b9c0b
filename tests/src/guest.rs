//! A guest that is moved about and asked how it is.

use crate::disk::{check_disks, with_disk};
use crate::migration::FinishedMigration;
use crate::{
    Exits, JsonReport, LONG, Migration, MigrationPlan, QemuState, TestEnv, eventually, log,
};
use hikkoshi_lab::{Report, Vm, VmConfig};
use std::sync::Arc;
use std::time::Duration;

/// A guest, wherever it is. On drop its machine ends, and its disks are checked.
#[derive(Debug)]
pub struct Guest<'a> {
    env: &'a TestEnv,
    config: VmConfig,
    vm: Arc<Vm>,
    attempts: u32,
}

impl<'a> Guest<'a> {
    /// Boots it, with a disk, and waits until its workload is at work.
    ///
    /// # Panics
    /// When it does not get there.
    pub fn boot(env: &'a TestEnv, config: VmConfig) -> Self {
        Self::boot_without_extra_disk(env, with_disk(env, config))
    }

    /// The same without a disk, unless its configuration names one.
    ///
    /// # Panics
    /// When it does not get there.
    pub fn boot_without_extra_disk(env: &'a TestEnv, config: VmConfig) -> Self {
        let guest = Self::start(env, config);
        guest.vm.wait_ready().unwrap();
        guest.wait_for_progress();
        guest
    }

    /// Starts its machine and waits for nothing.
    ///
    /// # Panics
    /// When it cannot be started.
    pub fn start(env: &'a TestEnv, config: VmConfig) -> Self {
        let vm = Arc::new(config.start(env.lab(), "host0").unwrap());
        Self {
            env,
            config,
            vm,
            attempts: 0,
        }
    }

    /// The machine that it is in.
    pub fn vm(&self) -> &Arc<Vm> {
        &self.vm
    }

    /// What its machine is like.
    pub fn config(&self) -> &VmConfig {
        &self.config
    }

    /// Sets out on a trip.
    ///
    /// # Panics
    /// When the destination or an engine cannot be started.
    pub fn start_migration(&mut self, plan: &MigrationPlan) -> Migration {
        self.attempts += 1;
        Migration::start(self.env, &self.vm, &self.config, plan, self.attempts)
    }

    /// Moves it; both engines must report success, and the guest must be sound where it has
    /// arrived.
    ///
    /// # Panics
    /// When anything is not as it should be.
    pub fn migrate(&mut self, plan: &MigrationPlan) -> JsonReport {
        let (exits, finished) = self.start_migration(plan).wait();
        self.complete_migration(&exits, finished, "running")
    }

    /// Moves into the destination, which must be in the state `state`, and checks everything
    /// that must be so after a move; a running guest is asked how it is.
    ///
    /// # Panics
    /// When anything is not as it should be.
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
                "the guest is at the destination, paused as it was",
                "the guest is here, paused as it was",
            ],
        };
        assert!(exits.migrate.stdout.contains(said[0]), "{exits:?}");
        assert!(exits.receive.stdout.contains(said[1]), "{exits:?}");
        let [Some(account), Some(there)] = &exits.accounts else {
            panic!("an account is missing: {exits:?}");
        };
        for account in [account, there] {
            account.check(mode, self.ram_mib());
        }
        assert_eq!(account.postcopy, there.postcopy);
        log(format!(
            "host{} → host{}, {account}",
            finished.number - 1,
            finished.number
        ));
        assert_eq!(self.vm.status().unwrap(), "postmigrate");
        assert_eq!(finished.destination.status().unwrap(), state);
        for vm in [&self.vm, &finished.destination] {
            eventually("without userfaultfd", || {
                let traces = QemuState::of(vm);
                match traces.has_no_userfaultfd() {
                    true => Ok(()),
                    false => Err(format!("{traces:?}")),
                }
            });
        }
        self.vm = finished.destination;
        if state == "running" {
            self.assert_healthy();
        }
        account.clone()
    }

    /// Moves into the destination of an attempt that was interrupted: both engines that were there
    /// last must report success, and nothing is left behind.
    ///
    /// # Panics
    /// When anything is not as it should be.
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

    /// Moves into the destination of an attempt that is over, whatever became of its engines:
    /// nothing is left behind.
    ///
    /// # Panics
    /// When anything is not as it should be.
    pub fn move_to_destination(&mut self, finished: FinishedMigration, what: &str) {
        let mut vms = vec![&finished.destination];
        if self.vm.exit_status().is_none() {
            assert_ne!(self.vm.status().unwrap(), "running");
            vms.push(&self.vm);
        }
        assert_eq!(finished.destination.status().unwrap(), "running");
        for vm in vms {
            eventually("without userfaultfd", || {
                let traces = QemuState::of(vm);
                match traces.has_no_userfaultfd() {
                    true => Ok(()),
                    false => Err(format!("{traces:?}")),
                }
            });
        }
        self.vm = finished.destination;
        self.assert_healthy();
        log(format!("{what}: moved after all, and is sound"));
    }

    /// After an attempt that came to nothing: the guest runs on where it was and is sound, and
    /// its QEMU is as it was before. The destination's QEMU ends.
    ///
    /// # Panics
    /// When anything is not as it should be.
    pub fn assert_stayed(&mut self, finished: FinishedMigration, what: &str) {
        eventually("running at the source", || {
            match self.vm.status().unwrap().as_str() {
                "running" => Ok(()),
                other => Err(other.to_owned()),
            }
        });
        assert_ne!(
            finished.destination.status().unwrap_or_default(),
            "running",
            "two guests"
        );
        finished.before.assert_unchanged(&self.vm);
        self.assert_healthy();
        let there = finished.destination.name();
        let lines = self.vm.console().since(finished.lines);
        assert!(
            lines.iter().all(|line| &*line.vm != there),
            "the guest has run at the destination"
        );
        log(format!("{what}: stayed, and is sound"));
        drop(finished);
    }

    /// The workload goes on, every page is as it should be now, and no page was ever not.
    ///
    /// # Panics
    /// When not.
    pub fn assert_healthy(&self) {
        self.wait_for_progress();
        let verdict = self.vm.sweep(LONG).unwrap();
        assert!(verdict.ok && verdict.bad == 0, "{verdict:?}");
        for line in self.vm.console().lines() {
            let good = match &line.report {
                Report::Bad(_) | Report::Failed(_) | Report::Stopped => false,
                Report::Verify(verify) => verify.ok && verify.bad == 0,
                Report::Dirty(dirty) => dirty.ok,
                _ => !line.text.contains("Kernel panic"),
            };
            assert!(good, "{}: {}", line.vm, line.text);
        }
    }

    /// Waits until the workload has made progress, here.
    ///
    /// # Panics
    /// When it makes none.
    pub fn wait_for_progress(&self) {
        // The first line may be about the time before now.
        let mut lines = 0;
        let first = self.vm.console().len();
        self.vm
            .wait_report("work", first, LONG, |report| {
                let work = match report {
                    Report::Verify(verify) => verify.latency.accesses > 0,
                    Report::Dirty(dirty) => dirty.latency.accesses > 0,
                    Report::Idle(_) => true,
                    _ => false,
                };
                lines += u32::from(work);
                (lines == 2).then_some(())
            })
            .unwrap();
        if !self.config.disks().is_empty() {
            let work = |report: &Report| match report {
                Report::Disk(work) => (work.reads + work.writes > 0).then_some(()),
                _ => None,
            };
            self.vm
                .wait_report("work with its disk", first, LONG, work)
                .unwrap();
        }
    }

    /// Its memory, MiB, by its RAM files.
    fn ram_mib(&self) -> u64 {
        let bytes: u64 = self
            .vm
            .ram_files()
            .iter()
            .map(|file| file.metadata().unwrap().len())
            .sum();
        bytes >> 20
    }

    /// Goes on in that machine, to which it was brought by hand.
    pub fn set_vm(&mut self, vm: Arc<Vm>) {
        self.vm = vm;
    }
}

impl Drop for Guest<'_> {
    fn drop(&mut self) {
        // A test that has failed says enough.
        if !std::thread::panicking() {
            check_disks(&self.vm, &self.config);
        }
    }
}

/// The guest does not run there. A QEMU whose main loop waits for a page of a broken post-copy
/// says nothing at all; that it did not begin to run either is the watcher's to see.
///
/// # Panics
/// When it does.
pub fn assert_not_running(vm: &Arc<Vm>) {
    let (sender, status) = std::sync::mpsc::channel();
    let asked = Arc::clone(vm);
    // Asked aside: the laboratory waits for an answer for much longer.
    std::thread::spawn(move || drop(sender.send(asked.status())));
    if let Ok(Ok(status)) = status.recv_timeout(Duration::from_secs(3)) {
        assert_ne!(status, "running", "{}", vm.name());
    }
}
