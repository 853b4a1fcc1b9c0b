//! The nano guest: it boots with every QEMU, by each accelerator, and detects damage.
#![allow(clippy::unwrap_used)] // a test's failure is the message

use hikkoshi_lab::{GuestReport, Lab, LabError, QemuVersion, Ram, Vm, VmConfig, Workload};
use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

/// Only ends a test that hangs.
const LONG: Duration = Duration::from_secs(60);
/// Where the guest's pages begin (guest/nano/link.ld).
const PAGES: u64 = 4 << 20;

fn config() -> VmConfig {
    let workload = Workload::verify(16).rate(2000).option("every_ms", 200);
    VmConfig::new()
        .nano()
        .ram(Ram::shared(64))
        .workload(workload)
}

fn wait_for_work(vm: &Vm) {
    vm.wait_report("work", 0, LONG, |report| match report {
        GuestReport::Verify(verify) => (verify.ok && verify.generation > 0).then_some(()),
        _ => None,
    })
    .unwrap();
}

fn boots_and_is_sound(config: &VmConfig) {
    let lab = Lab::new().unwrap();
    let vm = config.start(&lab, "guest").unwrap();
    let ready = vm.wait_ready().unwrap();
    assert_eq!((ready.pages, ready.threads, ready.cpus), (4096, 1, 1));
    assert_eq!(vm.uses_kvm().unwrap(), config.uses_kvm());
    wait_for_work(&vm);
    let verdict = vm.sweep(LONG).unwrap();
    assert!(verdict.ok && verdict.pages == 4096, "{verdict:?}");
    vm.send("stop").unwrap();
    assert!(vm.wait_exit(LONG).unwrap().success());
}

#[test]
fn it_boots_emulated() {
    for version in QemuVersion::OLDEST_AND_NEWEST {
        for machine in ["pc-q35-7.2", "pc-i440fx-7.2"] {
            boots_and_is_sound(&config().version(version).machine(machine));
        }
    }
}

/// Without KVM nothing is tested, which is said, and a run of CI fails.
fn kvm_present() -> bool {
    let opened = std::fs::File::options()
        .read(true)
        .write(true)
        .open("/dev/kvm");
    let Err(error) = opened else {
        return true;
    };
    let ci = std::env::var_os("CI").is_some_and(|ci| ci == "true");
    assert!(!ci, "no test under KVM can run: /dev/kvm: {error}");
    // Not by `eprintln!`, which is captured.
    let _ = writeln!(
        std::io::stderr(),
        "NOT TESTED: under KVM: /dev/kvm: {error}"
    );
    false
}

#[test]
fn it_boots_under_kvm() {
    if !kvm_present() {
        return;
    }
    for version in QemuVersion::OLDEST_AND_NEWEST {
        for machine in ["pc-q35-7.2", "pc-i440fx-7.2"] {
            boots_and_is_sound(&config().kvm().version(version).machine(machine));
        }
    }
}

/// More tasks than processors. Each writes as fast as it can, so that the others only run if the
/// timer interrupts it.
fn every_task_runs(config: &VmConfig) {
    const TASKS: u32 = 5;
    for (cpus, workload) in [
        (1, Workload::verify(16)),
        (2, Workload::dirty(16)),
        (4, Workload::verify(16)),
    ] {
        let lab = Lab::new().unwrap();
        let workload = workload.threads(TASKS).option("every_ms", 100);
        let config = config.clone().cpus(cpus).workload(workload);
        let vm = config.start(&lab, "guest").unwrap();
        let ready = vm.wait_ready().unwrap();
        assert_eq!(
            (ready.pages, ready.threads, ready.cpus),
            (4096, TASKS.into(), cpus.into())
        );
        let mut before = vec![0; TASKS as usize];
        // Every task gets on, twice. A busy host may not run a processor for a while.
        for _ in 0..2 {
            let until = Instant::now() + LONG;
            let grown = loop {
                let tasks = vm.tasks(TASKS.into(), LONG).unwrap();
                for task in &tasks {
                    assert_eq!(task.processor, task.number % u64::from(cpus));
                }
                let accesses: Vec<u64> = tasks.iter().map(|task| task.accesses).collect();
                if accesses
                    .iter()
                    .zip(&before)
                    .all(|(now, before)| now > before)
                {
                    break accesses;
                }
                assert!(Instant::now() < until, "a task does not run: {tasks:?}");
            };
            before = grown;
        }
        let verdict = vm.sweep(LONG).unwrap();
        assert!(verdict.ok && verdict.pages == 4096, "{verdict:?}");
        vm.send("stop").unwrap();
        assert!(vm.wait_exit(LONG).unwrap().success());
    }
}

#[test]
fn every_task_of_every_processor_runs_emulated() {
    every_task_runs(&config());
}

#[test]
fn every_task_of_every_processor_runs_under_kvm() {
    if kvm_present() {
        every_task_runs(&config().kvm());
    }
}

/// A scan reads each page once, and the processors are halted before and after it.
fn scans_once(config: &VmConfig) {
    let lab = Lab::new().unwrap();
    let workload = Workload::scan(16).threads(3);
    let workload = workload.option("every_ms", 200).option("account_ms", 100);
    let vm = config.clone().cpus(2).workload(workload);
    let vm = vm.start(&lab, "guest").unwrap();
    vm.wait_ready().unwrap();
    let halted = |report: &GuestReport| match report {
        GuestReport::Processors(processors) => (0..2)
            .all(|number| processors.idle[number] > processors.ran[number])
            .then_some(()),
        _ => None,
    };
    vm.wait_report("halted processors", 0, LONG, halted)
        .unwrap();
    vm.send("scan").unwrap();
    let scanned = vm.wait_report("the scan", 0, LONG, |report| match report {
        GuestReport::Scanned(scanned) => Some(*scanned),
        _ => None,
    });
    let scanned = scanned.unwrap();
    assert!(scanned.ok && scanned.pages == 4096, "{scanned:?}");
    let tasks = vm.tasks(3, LONG).unwrap();
    let accesses: Vec<_> = tasks.iter().map(|task| task.accesses).collect();
    assert_eq!(accesses, [1365, 1365, 1366]);
    let first = vm.console().len();
    vm.wait_report("halted processors", first, LONG, halted)
        .unwrap();
}

#[test]
fn a_scan_reads_each_page_once() {
    scans_once(&config());
    if kvm_present() {
        scans_once(&config().kvm());
    }
}

fn detects_damage(config: &VmConfig) {
    let lab = Lab::new().unwrap();
    let vm = config.start(&lab, "guest").unwrap();
    vm.wait_ready().unwrap();
    wait_for_work(&vm);
    vm.stop().unwrap();
    let ram = OpenOptions::new()
        .write(true)
        .open(&vm.ram_files()[0])
        .unwrap();
    // Page 4000 is written once only, so it is filled at any time.
    ram.write_all_at(&[0; 4096], PAGES + 4000 * 4096).unwrap();
    vm.cont().unwrap();
    let verdict = vm.sweep(LONG).unwrap();
    assert_eq!((verdict.ok, verdict.bad), (false, 1));
    let found = vm.wait_report("the finding", 0, LONG, |report| match report {
        GuestReport::Bad(text) => Some(text.clone()),
        _ => None,
    });
    let found = found.unwrap();
    assert!(
        found.contains("page=4000 ") && found.contains("fault=zero"),
        "{found}"
    );
}

#[test]
fn damage_is_detected() {
    detects_damage(&config());
    if kvm_present() {
        detects_damage(&config().kvm());
    }
}

#[test]
fn too_much_memory_is_said() {
    let lab = Lab::new().unwrap();
    let vm = config()
        .workload(Workload::verify(64))
        .start(&lab, "guest")
        .unwrap();
    let error = vm.wait_ready().unwrap_err();
    assert!(matches!(error, LabError::TimedOut { .. }), "{error}");
    assert!(
        error.to_string().contains("hk.mib is more than the memory"),
        "{error}"
    );
}

#[test]
fn a_time_out_says_what_the_machine_was_doing() {
    let lab = Lab::new().unwrap();
    let vm = config()
        .workload(Workload::verify(4))
        .start(&lab, "guest")
        .unwrap();
    vm.wait_ready().unwrap();
    let never = |_: &GuestReport| None::<()>;
    let short = Duration::from_millis(600);
    let none = vm.wait_report_or_none("nothing", 0, short, never).unwrap();
    assert!(none.is_none());
    let error = vm.wait_report("nothing", 0, short, never).unwrap_err();
    let text = error.to_string();
    for part in [
        "info status: VM status: running",
        "info registers -a: CPU#0",
        "HLT=",
        "info lapic 0: LVTT",
        "thread: wchan",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    vm.kill();
    let error = vm.wait_report("nothing", 0, LONG, never).unwrap_err();
    assert!(matches!(error, LabError::Ended { .. }), "{error}");
}
