//! Without privileges, under seccomp, and in a user namespace.

use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use hikkoshi_lab::QemuVersion;
use hikkoshi_tests::{
    Guest, JsonSchema, Program, TestEnv, copy_hikkoshi, hikkoshi, run_under_seccomp,
};
use serde_json::{Value, json};

use super::{Unchanged, idle_guest, json_of, obstacles};

/// Without the right to trace QEMU, check reports what QMP tells.
#[test]
fn another_user() {
    let env = TestEnv::new();
    let config = idle_guest().arguments(["-device", "virtio-rng-pci"]);
    let guest = Guest::start(&env, config);
    let qmp = guest.vm().qmp_path();
    std::fs::set_permissions(qmp, std::fs::Permissions::from_mode(0o777)).unwrap();
    let program = env.folder().join("hikkoshi");
    copy_hikkoshi(&program);
    let before = Unchanged::of_vm(guest.vm());
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
    command
        .arg(program)
        .args(["check", "--json", "-", "--qmp"])
        .arg(qmp);
    let exit = Program::start("check", command).wait();
    assert_eq!(exit.code, Some(1), "{exit:?}");
    before.assert(guest.vm());
    let found = JsonSchema::published().assert("check", exit.stdout.trim());
    assert_eq!(found["privileges"]["trace"], false);
    assert!(obstacles(&found).contains("CAP_SYS_PTRACE"), "{found}");
    let main = &found["memory"][0];
    assert_eq!((&main["id"], &main["held"]), (&json!("ram"), &Value::Null));
    assert!(!found["devices"].as_array().unwrap().is_empty(), "{found}");
}

/// QEMU's seccomp filter has to be suspended, which a program under seccomp may not do.
#[test]
fn a_sandboxed_qemu_and_hikkoshi_under_seccomp() {
    let env = TestEnv::new();
    let guest = Guest::start(&env, idle_guest().arguments(["-sandbox", "on"]));
    let qmp = guest.vm().qmp_path();
    let found = json_of(qmp, 0);
    let all = json!(["precopy", "postcopy", "hybrid"]);
    assert_eq!(found["modes"], all, "{found}");
    let before = Unchanged::of_vm(guest.vm());
    let reason = "suspending its filter needs a program that does not run under seccomp itself";
    run_under_seccomp(|| {
        let found = json_of(qmp, 0);
        assert_eq!(found["modes"], json!(["postcopy"]), "{found}");
        assert_eq!(found["privileges"]["userfaultfd"], false, "{found}");
        assert!(obstacles(&found).contains(reason), "{found}");
        let mut command = Command::new(hikkoshi());
        command.args(["migrate", "--mode", "precopy", "--qmp"]);
        command.arg(qmp).arg("unix:/nowhere");
        let exit = Program::start("migrate", command).wait();
        exit.assert(1, &[reason]);
    });
    before.assert(guest.vm());
}

/// In a user namespace, QEMU and hikkoshi may have all capabilities, which the kernel does not
/// count.
#[test]
fn a_sandboxed_qemu_and_hikkoshi_in_a_user_namespace() {
    let env = TestEnv::new();
    let (qmp, json) = (env.folder().join("qmp"), env.folder().join("json"));
    let script = format!(
        "{qemu} -S -display none -m 16 -nodefaults -sandbox on -qmp unix:{qmp},server=on,wait=off &
         until [[ -S {qmp} ]]; do kill -0 $!; sleep 0.01; done
         {program} check --qmp {qmp} --json {json}; kill $!",
        qemu = QemuVersion::V10_0.runner().unwrap().display(),
        qmp = qmp.display(),
        json = json.display(),
        program = hikkoshi().display(),
    );
    let mut command = Command::new("unshare");
    command.args([
        "--user",
        "--map-root-user",
        "--pid",
        "--fork",
        "--kill-child",
    ]);
    command.args(["--mount-proc", "bash", "-euo", "pipefail", "-c", &script]);
    let exit = Program::start("check", command).wait();
    assert_eq!(exit.code, Some(0), "{exit:?}");
    let object = std::fs::read_to_string(&json).unwrap();
    let found = JsonSchema::published().assert("check", object.trim());
    assert_eq!(found["modes"], json!(["postcopy"]), "{found}");
    assert_eq!(found["privileges"]["userfaultfd"], false, "{found}");
    let reason = "suspending its filter needs CAP_SYS_ADMIN in the initial user namespace";
    assert!(obstacles(&found).contains(reason), "{found}");
}
