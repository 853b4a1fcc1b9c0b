//! Guests that cannot be moved, or not in every mode.

use hikkoshi_lab::{Mount, Ram};
use hikkoshi_tests::{Guest, TestEnv, assert_refused};
use serde_json::json;

use super::{check, light_guest, obstacles};

#[test]
fn every_obstacle_is_named_by_check_and_by_migrate() {
    let env = TestEnv::new();
    let socket = env.folder().join("crypto");
    let chardev = format!("socket,id=c,path={},server=on,wait=off", socket.display());
    let devices = [
        "-chardev",
        &chardev,
        "-object",
        "cryptodev-vhost-user,id=v,chardev=c",
        "-device",
        "virtio-balloon-pci,id=balloon,free-page-reporting=on",
        "-device",
        "nvme,serial=n",
    ];
    let ram = Ram::shared(0).numa(&[128, 128]);
    let unknown = Mount::ramfs(env.lab(), "unknown").unwrap();
    let guest = Guest::start(
        &env,
        light_guest()
            .ram(ram)
            .ram_directory(unknown.path())
            .arguments(devices),
    );
    let qmp = guest.vm().qmp();
    for node in ["from", "to"] {
        let disk = json!({ "driver": "null-co", "node-name": node, "size": 1 << 30 });
        qmp.execute("blockdev-add", disk).unwrap();
    }
    let backup = json!({ "job-id": "bk", "device": "from", "target": "to", "sync": "full",
                         "speed": 1 });
    qmp.execute("blockdev-backup", backup).unwrap();
    let parts = [
        "cryptodev-vhost-user",
        "block job 'bk'",
        "not on tmpfs",
        "non-migratable device",
    ];
    let (found, _) = check(guest.vm(), 1);
    assert_eq!(found["can_be_moved"], false);
    assert_eq!(found["jobs"][0]["id"], "bk");
    let verdict = |kind: &str| {
        let mut devices = found["devices"].as_array().unwrap().iter();
        devices.find(|device| device["kind"] == kind).unwrap()["verdict"].clone()
    };
    assert_eq!(verdict("nvme"), "refused");
    assert_eq!(verdict("cryptodev-vhost-user"), "refused");
    assert_eq!(verdict("virtio-balloon-pci"), "precopy_only");
    let texts = obstacles(&found);
    for part in parts.iter().chain(&["balloon has free-page-reporting=on"]) {
        assert!(texts.contains(part), "{part:?} is not in {texts}");
    }
    // Both of the memory's files.
    assert_eq!(texts.matches("not on tmpfs").count(), 2, "{texts}");
    let of_balloon = found["obstacles"].as_array().unwrap().iter();
    let of_balloon = of_balloon
        .filter(|obstacle| obstacle["text"].as_str().unwrap().contains("balloon"))
        .map(|obstacle| &obstacle["modes"]);
    assert_eq!(
        of_balloon.collect::<Vec<_>>(),
        [&json!(["postcopy", "hybrid"])]
    );
    let path = guest.vm().qmp_path().to_str().unwrap();
    let migrate = ["migrate", "unix:/nowhere", "--qmp", path];
    let refused = assert_refused(&migrate, 1, &parts);
    assert!(
        refused.stderr.contains("free-page-reporting"),
        "{refused:?}"
    );
    // A pre-copy that may switch to post-copy is refused as well.
    let mut precopy = [&migrate[..], &["--mode", "precopy"]].concat();
    let switching = [&precopy[..], &["--when-stalled", "switch"]].concat();
    let refused = assert_refused(&switching, 1, &parts);
    assert!(
        refused.stderr.contains("free-page-reporting"),
        "{refused:?}"
    );
    // Pre-copy alone does not mind the balloon.
    precopy.extend(["--when-stalled", "stop"]);
    let refused = assert_refused(&precopy, 1, &parts);
    assert!(
        !refused.stderr.contains("free-page-reporting"),
        "{refused:?}"
    );
}
