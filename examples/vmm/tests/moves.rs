//! The example moves its guest by each mode and with each dirty log, and the guest continues: where
//! it arrives, and at the source if the destination refuses it.

#![allow(missing_docs)]

use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;
use std::process::Command;

/// What `make guest` builds.
const KERNEL: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../build/nano/x86_64-unknown-linux-gnu/release/nano"
);

/// Whether there is KVM. If not, this says that nothing is tested; in CI it fails.
fn kvm_present() -> bool {
    match OpenOptions::new().read(true).write(true).open("/dev/kvm") {
        Ok(_) => true,
        Err(error) => {
            let ci = std::env::var_os("CI").is_some_and(|ci| ci == "true");
            assert!(!ci, "no test under KVM can run: /dev/kvm: {error}");
            // Not captured with the output of a test that passes.
            let message = format!("NOT TESTED: the example monitor: /dev/kvm: {error}");
            let _ = writeln!(std::io::stderr(), "{message}");
            false
        }
    }
}

#[test]
fn the_guest_continues_after_each_move() {
    if !kvm_present() {
        return;
    }
    assert!(Path::new(KERNEL).exists(), "{KERNEL}: run `make guest`");
    let output = Command::new(env!("CARGO_BIN_EXE_hikkoshi-vmm"))
        .arg(KERNEL)
        .output()
        .unwrap();
    let table = String::from_utf8(output.stdout).unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{table}{errors}");
    // Mode, log, rounds, pre-copied, urgent, background, downtime, its unit, pages, "ok".
    let rows: Vec<Vec<&str>> = table
        .lines()
        .skip(1)
        .map(|row| row.split_whitespace().collect())
        .collect();
    let moves: Vec<[&str; 2]> = rows.iter().map(|row| [row[0], row[1]]).collect();
    let logs = ["Bitmap", "ManualProtect", "Ring", "Pagemap"];
    let expected: Vec<[&str; 2]> = (logs.map(|log| ["precopy", log]).into_iter())
        .chain([["postcopy", "-"]])
        .chain(logs.map(|log| ["hybrid", log]))
        .collect();
    assert_eq!(moves, expected, "{table}");
    for row in &rows {
        let number = |column: usize| -> u64 { row[column].parse().unwrap() };
        // The workload has 8192 pages of 4 KiB, a tenth of which may be zero.
        let (precopied, postcopied) = (number(3), number(4) + number(5));
        assert_eq!((number(8), row[9]), (8192, "ok"), "{table}");
        assert_eq!(precopied > 7000, row[0] != "postcopy", "{table}");
        // How much hybrid sends after the switchover depends on the machine's speed.
        match row[0] {
            "precopy" => assert_eq!(postcopied, 0, "{table}"),
            "postcopy" => assert!(postcopied > 7000, "{table}"),
            _ => {}
        }
    }
}
