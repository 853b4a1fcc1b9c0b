//! `check --copy-disks`: whether the disks can be copied, also to this destination.

use hikkoshi_lab::DiskFormat;
use hikkoshi_tests::{Guest, JsonSchema, TestEnv};
use serde_json::{Value, json};

use super::{Unchanged, idle_guest, obstacles, run, waiting_receiver};
use crate::copy_disks::{blank_disk, blank_disk_of, full_disk};

/// The second disk does not fit. Neither QEMU is changed, and the destination waits as before.
#[test]
fn disks_are_compared_with_those_of_a_destination() {
    let env = TestEnv::new();
    let from = [DiskFormat::Raw, DiskFormat::Qcow2].map(|format| full_disk(&env, format));
    let to = blank_disk(&env, DiskFormat::Raw);
    let small = blank_disk_of(&env, None, DiskFormat::Raw, 12);
    let [first, second] = from.clone();
    let guest = Guest::start(&env, idle_guest().disk(first).disk(second));
    let there = idle_guest()
        .disk(to)
        .disk(small)
        .console(guest.vm().console().clone())
        .incoming()
        .start(env.lab(), "asked")
        .unwrap();
    let (mut receive, invitation) = waiting_receiver(&env, &there);
    let before = [Unchanged::of(guest.vm()), Unchanged::of(&there)];
    let qmp = guest.vm().qmp_path();
    let json_of = |code, more: &[&str]| -> Value {
        let object = run(qmp, code, &[more, &["--json", "-"]].concat());
        JsonSchema::published().assert("check", object.trim())
    };

    let every_mode = json!(["precopy", "postcopy", "hybrid"]);
    let both = json!([
        { "name": "disk0-device", "bytes": 24 << 20 },
        { "name": "disk1-device", "bytes": 24 << 20 },
    ]);
    assert_eq!(json_of(0, &[])["copied_disks"], Value::Null);
    let found = json_of(0, &["--copy-disks"]);
    assert_eq!(
        (&found["copied_disks"], &found["modes"]),
        (&both, &every_mode)
    );
    let text = run(qmp, 0, &["--copy-disks=disk0-device"]);
    assert!(text.contains("copied disk disk0-device: 24 MiB"), "{text}");
    assert!(!text.contains("copied disk disk1-device"), "{text}");
    // The destination needs no access to a disk that is copied.
    let reach = text
        .lines()
        .find(|line| line.contains("reach the same disks"));
    let names = from.map(|disk| disk.image().path().display().to_string());
    let reach = reach.unwrap_or_else(|| panic!("{text}"));
    assert!(
        !reach.contains(&names[0]) && reach.contains(&names[1]),
        "{reach}"
    );

    let found = json_of(1, &["--copy-disks", "--to", &invitation]);
    assert_eq!(found["obstacles"], json!([]), "nothing here");
    let there_is = &found["destination"];
    assert_eq!(there_is["obstacles"][0]["modes"], every_mode, "{found}");
    let differs = "the disk disk1-device has 25165824 bytes at the source, and 12582912 here";
    assert!(obstacles(there_is).contains(differs), "{found}");
    assert_eq!(
        there_is["obstacles"].as_array().unwrap().len(),
        1,
        "{found}"
    );
    let text = run(qmp, 0, &["--copy-disks=disk0-device", "--to", &invitation]);
    let accepts = "compared: machine type, memory, devices, processors, copied disks)";
    assert!(text.contains(accepts), "{text}");

    let found = json_of(1, &["--copy-disks=sda", "--to", &invitation]);
    let text = "the guest has no disk 'sda' with a medium";
    assert!(obstacles(&found).contains(text), "{found}");
    assert_eq!(
        (&found["copied_disks"], &found["modes"]),
        (&Value::Null, &json!([]))
    );

    assert!(!receive.has_exited());
    before[0].assert(guest.vm());
    before[1].assert(&there);
}
