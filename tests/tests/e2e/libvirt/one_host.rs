//! Domains of a real libvirt daemon.
#![allow(clippy::unwrap_used)] // a test's failure is the message

use std::path::Path;
use std::process::Command;

use hikkoshi_tests::{Exit, JsonSchema, TestEnv, hikkoshi, log, on_libvirt_host};
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
pub(super) fn built_with_libvirt() -> bool {
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

/// Writes a domain's XML to the file `xml` in the folder of `env`. Returns the folder, and the
/// program.
fn write_domain(env: &TestEnv, xml: &str) -> (String, String) {
    let folder = env.folder().to_str().unwrap().to_owned();
    let xml = xml.replace("FOLDER", &folder);
    std::fs::write(env.folder().join("xml"), xml).unwrap();
    (folder, hikkoshi().display().to_string())
}

/// A domain that is offered to the daemon where it runs is refused, and is not touched.
#[test]
#[ignore = "takes long: make test-libvirt"]
fn a_domain_that_runs_at_the_destination_is_left_alone() {
    if !built_with_libvirt() {
        return;
    }
    let env = TestEnv::new();
    let (folder, program) = write_domain(&env, DOMAIN);
    let script = format!(
        "chmod a+rx {folder}; truncate --size 16M {folder}/disk
         virsh -q create {folder}/xml; virsh -q domid guest
         {program} receive --connect qemu:///system --listen unix:{folder}/listen &
         until [[ -S {folder}/listen ]]; do sleep 0.1; done
         {program} migrate --domain guest unix:{folder}/listen || echo \"status $?\"
         virsh -q domstate guest; virsh -q domid guest; ls --ignore status --ignore control /run/hikkoshi; kill %1; wait %1 || true",
    );
    let exit = on_libvirt_host(env.folder(), &script);
    let lines: Vec<&str> = exit.stdout.split_whitespace().collect();
    // The receiver waits for another guest.
    let lock = "destination-receiver-0.lock";
    assert_eq!(
        lines,
        ["1", "status", "1", "running", "1", lock],
        "{exit:?}"
    );
    let refused = "creating the domain guest: it is active at qemu:///system already";
    assert!(exit.stderr.contains(refused), "{exit:?}");
}

/// `virsh migrate` refuses it as well.
#[test]
#[ignore = "refused before anything is done: make test-libvirt"]
fn a_domain_with_a_job_is_refused() {
    if !built_with_libvirt() {
        return;
    }
    let env = TestEnv::new();
    let (folder, program) = write_domain(&env, &DOMAIN.replace("'raw'", "'qcow2'"));
    let backup = format!(
        "<domainbackup mode='pull'><server transport='unix' socket='{folder}/nbd'/></domainbackup>"
    );
    std::fs::write(env.folder().join("backup"), backup).unwrap();
    let image = Path::new(env!("CARGO_MANIFEST_DIR")).join("../build/qemu-img/run");
    let image = image.canonicalize().unwrap();
    let script = format!(
        "chmod a+rwx {folder}; {image} create -q -f qcow2 {folder}/disk 16M
         virsh -q create {folder}/xml
         refused() {{ {program} \"$@\" || echo \"status $?\"; }}
         virsh -q backup-begin guest {folder}/backup >/dev/null
         refused migrate --domain guest unix:{folder}/none
         refused check --domain guest >/dev/null
         virsh -q domjobabort guest; virsh -q domstate guest",
        image = image.display(),
    );
    let exit = on_libvirt_host(env.folder(), &script);
    let lines: Vec<&str> = exit
        .stdout
        .lines()
        .filter(|line| !line.is_empty())
        .collect();
    assert_eq!(lines, ["status 1", "running"], "{exit:?}");
    assert!(exit.stderr.contains("job"), "{exit:?}");
}

/// As libvirt starts it by default: another user, a seccomp filter, private memory, and a `/dev` of
/// its own.
#[test]
fn check_of_a_domain() {
    if !built_with_libvirt() {
        return;
    }
    let env = TestEnv::new();
    let (folder, program) = write_domain(&env, DOMAIN);
    let script = format!(
        "chmod a+rx {folder}; truncate --size 16M {folder}/disk
         virsh -q create {folder}/xml
         {program} check --domain guest --json {folder}/json
         {program} check --domain 6695eb01-f6a4-8304-79aa-97f2502e193f --connect qemu:///system | head -n 1
         {program} dirty-rate --domain guest --seconds 0.3 --json {folder}/rate
         virsh -q domstate guest; virsh -q destroy guest
         {program} check --domain guest && exit 99 || exit $?",
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

/// A user's own daemon. Root reaches its domains by the daemon's socket; the user itself may not
/// suspend QEMU's seccomp filter, whoever may open `/dev/userfaultfd`.
#[test]
#[ignore = "the same program, another daemon: make test-libvirt"]
fn check_of_a_domain_of_a_users_daemon() {
    if !built_with_libvirt() {
        return;
    }
    let env = TestEnv::new();
    let (folder, program) = write_domain(&env, DOMAIN);
    let script = format!(
        r#"chmod a+rwx {folder}; truncate --size 16M {folder}/disk; chmod a+rw {folder}/disk
         echo 'user:x:1000:1000::/home/user:/bin/bash' >>/etc/passwd; echo user:x:1000: >>/etc/group
         export XDG_RUNTIME_DIR=/run/user/1000
         mkdir -p /home/user $XDG_RUNTIME_DIR
         chown 1000:1000 /home/user $XDG_RUNTIME_DIR
         user() {{ setpriv --reuid 1000 --regid 1000 --clear-groups env HOME=/home/user "$@"; }}
         chmod a+rw /dev/userfaultfd || true
         user virtlogd --daemon; user libvirtd --daemon
         user virsh -q --connect qemu:///session create {folder}/xml
         {program} check --domain guest \
             --connect "qemu:///session?socket=$XDG_RUNTIME_DIR/libvirt/libvirt-sock"
         user {program} check --domain guest --connect qemu:///session
         received=(--listen 127.0.0.1:7100 --wait-for 60)
         socket="?socket=$XDG_RUNTIME_DIR/libvirt/libvirt-sock"
         for uri in qemu:///session "qemu:///session$socket" "qemu:///system$socket"; do
             {program} receive "${{received[@]}}" --connect "$uri" || echo "root $uri: status $?"
         done
         user {program} receive "${{received[@]}}" --connect qemu:///session || echo "user: status $?"
         unset XDG_RUNTIME_DIR
         {program} check --domain guest --connect qemu:///session && exit 99 || exit $?"#,
    );
    let exit = on_libvirt_host(env.folder(), &script);
    assert_eq!(exit.code, Some(1), "{exit:?}");
    let can: Vec<_> = exit
        .stdout
        .lines()
        .filter(|line| line.starts_with("the guest can be moved"))
        .collect();
    let all = "the guest can be moved: precopy, postcopy, hybrid";
    assert_eq!(can, [all, "the guest can be moved: postcopy"], "{exit:?}");
    let obstacle =
        "it runs under seccomp (QEMU's -sandbox), and suspending its filter needs CAP_SYS_ADMIN";
    assert!(exit.stdout.contains(obstacle), "{exit:?}");
    // Neither root nor the user receives a domain with it. The last is not a URI of such a daemon.
    let ended: Vec<_> = exit
        .stdout
        .lines()
        .filter(|line| line.contains(": status "))
        .collect();
    assert_eq!(ended.len(), 4, "{exit:?}");
    assert!(
        ended.iter().all(|line| line.ends_with(": status 1")),
        "{exit:?}"
    );
    let refused = exit
        .stderr
        .matches("is a user's own daemon, which cannot receive a domain");
    assert_eq!(refused.count(), 3, "{exit:?}");
    assert!(
        exit.stderr.contains("XDG_RUNTIME_DIR is not set"),
        "{exit:?}"
    );
}

/// Runs a part of `moves.sh`.
fn moves(env: &TestEnv, test: &str) -> Exit {
    let build = concat!(env!("CARGO_MANIFEST_DIR"), "/../build");
    let build = Path::new(build).canonicalize().unwrap();
    let script = format!(
        "{script} {build} {folder} {program} {test}",
        script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/e2e/libvirt/moves.sh"),
        build = build.display(),
        folder = env.folder().display(),
        program = hikkoshi().display(),
    );
    let exit = on_libvirt_host(env.folder(), &script);
    assert_eq!(exit.code, Some(0), "{}\n{}", exit.stdout, exit.stderr);
    exit
}

/// The daemon is restarted at any moment, the engine is killed, and a device is plugged.
#[test]
#[ignore = "takes long: make test-libvirt"]
fn a_domain_is_moved_away_at_last() {
    if !built_with_libvirt() {
        return;
    }
    let env = TestEnv::new();
    let exit = moves(&env, "failures");
    let log = |name: &str| std::fs::read_to_string(env.folder().join(name)).unwrap();
    let has = |line: &str| assert!(exit.stdout.lines().any(|l| l == line), "{line}: {exit:?}");
    has("killed: status 137");
    has("plugged: status 1");
    let plugged = log("migrate2.log");
    let reason = "was changed during the move: <disk> (<target dev='sdz' bus='usb'/>) was added";
    assert!(plugged.contains(reason), "{plugged}");
    has("moved: status 0");
    // It was undefined.
    assert!(!exit.stdout.contains("moved:  "), "{exit:?}");
}

#[test]
#[ignore = "two more boots of a guest: make test-libvirt"]
fn a_domain_is_moved_away_in_each_mode() {
    if !built_with_libvirt() {
        return;
    }
    let env = TestEnv::new();
    let exit = moves(&env, "modes");
    for mode in ["precopy", "postcopy"] {
        assert!(
            exit.stdout.contains(&format!("{mode}: status 0")),
            "{exit:?}"
        );
    }
    assert!(exit.stdout.contains("shut off"), "{exit:?}");
}
