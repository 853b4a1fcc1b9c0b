//! A guest that is moved about and asked how it is.

use crate::disk::{check_disks, with_disk};
use crate::migration::Arrived;
use crate::{Account, Attempt, Ends, LONG, Scene, Traces, Trip, eventually, tell};
use hikkoshi_lab::{Report, Vm, VmConfig};
use std::sync::Arc;
use std::time::Duration;

/// A guest, wherever it is. On drop its machine ends, and its disks are checked.
#[derive(Debug)]
pub struct Guest<'a> {
    scene: &'a Scene,
    config: VmConfig,
    vm: Arc<Vm>,
    attempts: u32,
}

impl<'a> Guest<'a> {
    /// Boots it, with a disk, and waits until its workload is at work.
    ///
    /// # Panics
    /// When it does not get there.
    pub fn boot(scene: &'a Scene, config: VmConfig) -> Self {
        Self::boot_as_it_is(scene, with_disk(scene, config))
    }

    /// The same without a disk, unless its configuration names one.
    ///
    /// # Panics
    /// When it does not get there.
    pub fn boot_as_it_is(scene: &'a Scene, config: VmConfig) -> Self {
        let guest = Self::start(scene, config);
        guest.vm.wait_ready().unwrap();
        guest.works();
        guest
    }

    /// Starts its machine and waits for nothing.
    ///
    /// # Panics
    /// When it cannot be started.
    pub fn start(scene: &'a Scene, config: VmConfig) -> Self {
        let vm = Arc::new(config.start(scene.lab(), "host0").unwrap());
        Self {
            scene,
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
    pub fn set_out(&mut self, trip: &Trip) -> Attempt {
        self.attempts += 1;
        Attempt::start(self.scene, &self.vm, &self.config, trip, self.attempts)
    }

    /// Moves it; both engines must report success, and the guest must be sound where it has
    /// arrived.
    ///
    /// # Panics
    /// When anything is not as it should be.
    pub fn travel(&mut self, trip: &Trip) -> Account {
        let (ends, arrived) = self.set_out(trip).wait();
        self.arrive(&ends, arrived, "running")
    }

    /// Moves into the destination, which must be in the state `state`, and checks everything
    /// that must be so after a move; a running guest is asked how it is.
    ///
    /// # Panics
    /// When anything is not as it should be.
    pub fn arrive(&mut self, ends: &Ends, arrived: Arrived, state: &str) -> Account {
        let mode = arrived.trip.mode;
        ends.assert_source(0, &[]);
        ends.assert_destination(0, &[]);
        let said = match state {
            "running" => ["the guest runs at the destination", "the guest runs here"],
            _ => [
                "the guest is at the destination, paused as it was",
                "the guest is here, paused as it was",
            ],
        };
        assert!(ends.migrate.printed.contains(said[0]), "{ends:?}");
        assert!(ends.receive.printed.contains(said[1]), "{ends:?}");
        let [Some(account), Some(there)] = &ends.accounts else {
            panic!("an account is missing: {ends:?}");
        };
        for account in [account, there] {
            account.check(mode, self.config_mib());
        }
        assert_eq!(account.postcopy, there.postcopy);
        tell(format!(
            "host{} → host{}, {account}",
            arrived.number - 1,
            arrived.number
        ));
        assert_eq!(self.vm.status().unwrap(), "postmigrate");
        assert_eq!(arrived.destination.status().unwrap(), state);
        for vm in [&self.vm, &arrived.destination] {
            eventually("without userfaultfd", || {
                let traces = Traces::of(vm);
                match traces.are_free_of_userfaults() {
                    true => Ok(()),
                    false => Err(format!("{traces:?}")),
                }
            });
        }
        self.vm = arrived.destination;
        if state == "running" {
            self.is_sound();
        }
        account.clone()
    }

    /// Moves into the destination of an attempt that was interrupted: both engines that were there
    /// last must report success, and nothing is left behind.
    ///
    /// # Panics
    /// When anything is not as it should be.
    pub fn arrive_after_all(&mut self, ends: &Ends, arrived: Arrived, what: &str) {
        ends.assert_source(0, &[]);
        ends.assert_destination(0, &[]);
        self.is_there(arrived, what);
    }

    /// Moves into the destination of an attempt that is over, whatever became of its engines:
    /// nothing is left behind.
    ///
    /// # Panics
    /// When anything is not as it should be.
    pub fn is_there(&mut self, arrived: Arrived, what: &str) {
        let mut vms = vec![&arrived.destination];
        if self.vm.exit_status().is_none() {
            assert_ne!(self.vm.status().unwrap(), "running");
            vms.push(&self.vm);
        }
        assert_eq!(arrived.destination.status().unwrap(), "running");
        for vm in vms {
            eventually("without userfaultfd", || {
                let traces = Traces::of(vm);
                match traces.are_free_of_userfaults() {
                    true => Ok(()),
                    false => Err(format!("{traces:?}")),
                }
            });
        }
        self.vm = arrived.destination;
        self.is_sound();
        tell(format!("{what}: moved after all, and is sound"));
    }

    /// After an attempt that came to nothing: the guest runs on where it was and is sound, and
    /// its QEMU is as it was before. The destination's QEMU ends.
    ///
    /// # Panics
    /// When anything is not as it should be.
    pub fn stay(&mut self, arrived: Arrived, what: &str) {
        eventually("running at the source", || {
            match self.vm.status().unwrap().as_str() {
                "running" => Ok(()),
                other => Err(other.to_owned()),
            }
        });
        assert_ne!(
            arrived.destination.status().unwrap_or_default(),
            "running",
            "two guests"
        );
        arrived.before.assert_same(&self.vm);
        self.is_sound();
        let there = arrived.destination.name();
        let lines = self.vm.console().since(arrived.lines);
        assert!(
            lines.iter().all(|line| &*line.vm != there),
            "the guest has run at the destination"
        );
        tell(format!("{what}: stayed, and is sound"));
        drop(arrived);
    }

    /// The workload goes on, every page is as it should be now, and no page was ever not.
    ///
    /// # Panics
    /// When not.
    pub fn is_sound(&self) {
        self.works();
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
    pub fn works(&self) {
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
    fn config_mib(&self) -> u64 {
        let bytes: u64 = self
            .vm
            .ram_files()
            .iter()
            .map(|file| file.metadata().unwrap().len())
            .sum();
        bytes >> 20
    }

    /// Goes on in that machine, to which it was brought by hand.
    pub fn is_now_in(&mut self, vm: Arc<Vm>) {
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
