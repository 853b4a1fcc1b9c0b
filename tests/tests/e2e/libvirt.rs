//! Domains of a real libvirt daemon.
#![allow(clippy::unwrap_used)] // a test's failure is the message

use std::process::Command;

use hikkoshi_tests::{JsonSchema, TestEnv, hikkoshi, log, on_libvirt_host};
use serde_json::json;

const DOMAIN: &str = "<domain type='qemu'>
  <name>guest</name><uuid>6695eb01-f6a4-8304-79aa-97f2502e193f</uuid>
  <memory unit='MiB'>64</memory>
  <os><type arch='x86_64' machine='pc-q35-7.2'>hvm</type></os>
  <features><acpi/><apic/></features>
  <devices>
    <disk type='file' device='disk'>
      <driver name='qemu' type='raw' cache='none'/>
      <source file='FOLDER/disk'/><target dev='vda' bus='virtio'/>
    </disk>
    <console type='pty'/>
  </devices>
</domain>";

/// Whether the program was built with libvirt.
///
/// # Panics
/// In CI, when it was not.
fn built_with_libvirt() -> bool {
    let mut check = Command::new(hikkoshi());
    check.args(["check", "--domain", "guest"]);
    let output = check.output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    let built = !text.contains("built without libvirt");
    if !built {
        let ci = std::env::var_os("CI").is_some_and(|ci| ci == "true");
        assert!(!ci, "{text}");
        log(format!("NOT TESTED: domains of libvirt: {text}"));
    }
    built
}

/// As libvirt starts it by default: another user, a seccomp filter, private memory, and a `/dev` of
/// its own.
#[test]
fn check_of_a_domain() {
    if !built_with_libvirt() {
        return;
    }
    let env = TestEnv::new();
    let folder = env.folder().to_str().unwrap();
    std::fs::write(env.folder().join("xml"), DOMAIN.replace("FOLDER", folder)).unwrap();
    let program = hikkoshi();
    let script = format!(
        "chmod a+rx {folder}; truncate --size 16M {folder}/disk
         virsh -q create {folder}/xml
         {program} check --domain guest --json {folder}/json
         {program} check --domain 6695eb01-f6a4-8304-79aa-97f2502e193f --connect qemu:///system | head -n 1
         {program} dirty-rate --domain guest --seconds 0.3 --json {folder}/rate
         virsh -q domstate guest; virsh -q destroy guest
         {program} check --domain guest && exit 99 || exit $?",
        program = program.display(),
    );
    let exit = on_libvirt_host(env.folder(), &script);
    assert_eq!(exit.code, Some(1), "{exit:?}");
    let object = std::fs::read_to_string(env.folder().join("json")).unwrap();
    let found = JsonSchema::published().assert("check", object.trim());
    assert_eq!(
        found["modes"],
        json!(["precopy", "postcopy", "hybrid"]),
        "{found}"
    );
    assert_eq!(found["memory"][0]["held"], "private", "{found}");
    assert_eq!(found["disks"].as_array().unwrap().len(), 1, "{found}");
    let object = std::fs::read_to_string(env.folder().join("rate")).unwrap();
    let rate = JsonSchema::published().assert("dirty_rate", object.trim());
    assert_eq!(rate["intervals"], 3, "{rate}");
    let main = &rate["blocks"][0];
    assert_eq!(
        (&main["id"], &main["bytes"]),
        (&json!("pc.ram"), &found["memory"][0]["bytes"])
    );
    let lines: Vec<&str> = exit.stdout.lines().collect();
    assert!(
        exit.stdout
            .contains("the guest can be moved: precopy, postcopy, hybrid"),
        "{exit:?}"
    );
    assert!(
        lines.iter().any(|line| line.trim() == "running"),
        "{exit:?}"
    );
    let lost = "hikkoshi: looking for the domain guest at qemu:///system: Domain not found";
    assert!(exit.stderr.contains(lost), "{exit:?}");
}
