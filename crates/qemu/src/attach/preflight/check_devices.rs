//! Checks everything in a QEMU that can write the guest's memory: before a move,
//! and again right before the guest is paused.

use serde_json::{Value, json};

use super::devices::{self, MemoryWrites};
use super::qom_tree::{self, Object};
use super::{
    Allowed, Refusal, block, deleted_images, nested, network, other_process, pinning, tpm,
};
use crate::qmp::qom;
use crate::qmp::{Client, QmpError};

/// The result: everything that was found, not only the first obstacle.
#[derive(Debug, Default)]
pub(crate) struct Survey {
    /// Why the guest cannot be moved, in any mode or in some.
    pub(crate) found: Vec<Refusal>,
    /// The first disk that writes into pinned pages: rounds have to drain.
    pub(crate) pinning: Option<block::Node>,
}

/// Checks all devices, objects, network backends and disks.
pub(crate) fn survey(client: &mut Client, allowed: &Allowed) -> Result<Survey, QmpError> {
    let mut survey = Survey::default();
    for object in objects(client)? {
        // Its parts are not further obstacles.
        let is_part = |refusal: &Refusal| matches!(refusal, Refusal::Device { path, .. } if object.is_below(path));
        if !survey.found.iter().any(is_part) {
            check_object(client, object, allowed, &mut survey)?;
        }
    }
    for peer in network::peers(client)? {
        let writes = devices::of_network(&peer.kind, &peer.info);
        let object = Object {
            path: peer.name,
            kind: peer.kind,
        };
        match writes {
            MemoryWrites::Tracked => {}
            MemoryWrites::Refused(why) | MemoryWrites::UntilPause(why) => {
                survey.found.push(Refusal::Device {
                    process: other_process::of_network(client, &object.path, &peer.info),
                    path: object.path,
                    kind: format!("{} network backend", object.kind),
                    why,
                });
            }
            MemoryWrites::Unknown => survey.found.extend(unknown(object, allowed)),
        }
    }
    let nodes = block::nodes(client)?;
    let disks = block::check(&nodes, |driver| allowed.has_type(driver));
    survey.found.extend(disks);
    survey
        .found
        .extend(deleted_images::check(&nodes, client.peer()));
    survey.pinning = pinning::first(&nodes, client.peer()).cloned();
    survey.found.extend(tpm::check(client)?);
    let nested = nested::feature(client)?;
    survey
        .found
        .extend(nested.map(|feature| Refusal::Nested { feature }));
    Ok(survey)
}

/// The machine's devices, and the objects of `-object`.
pub(super) fn objects(client: &mut Client) -> Result<Vec<Object>, QmpError> {
    let mut objects = qom_tree::objects(client)?;
    objects.retain(|object| !devices::is_not_a_device(&object.kind));
    if objects
        .iter()
        .any(|object| devices::of_type(&object.kind) == MemoryWrites::Unknown)
    {
        // Not every object of a machine is a device. Queried only if it matters:
        // QEMU loads all of its modules to answer.
        let types = client.execute("qom-list-types", json!({ "implements": "device" }))?;
        let types = types
            .as_array()
            .ok_or_else(|| QmpError::unexpected("qom-list-types", "not a list"))?;
        let is_device = |kind: &str| {
            let mut names = types.iter().filter_map(|row| row.get("name")?.as_str());
            names.any(|name| name == kind)
        };
        objects.retain(|object| {
            devices::of_type(&object.kind) != MemoryWrites::Unknown || is_device(&object.kind)
        });
    }
    for (name, kind) in qom::children(client, "/objects")? {
        let path = format!("/objects/{name}");
        objects.push(Object { path, kind });
    }
    Ok(objects)
}

/// Adds what one object means to `survey`.
fn check_object(
    client: &mut Client,
    object: Object,
    allowed: &Allowed,
    survey: &mut Survey,
) -> Result<(), QmpError> {
    let for_rounds = |Object { path, kind }, why| Refusal::Rounds { path, kind, why };
    match devices::of_type(&object.kind) {
        MemoryWrites::Tracked if has_scsi_passthrough(client, &object)? => {
            survey.found.push(for_rounds(object, devices::SG_IO));
        }
        MemoryWrites::Tracked => {}
        MemoryWrites::UntilPause(why) => survey.found.push(for_rounds(object, why)),
        MemoryWrites::Refused(why) => {
            let Object { path, kind } = object;
            let process = other_process::of_object(client, &path);
            survey.found.push(Refusal::Device {
                path,
                kind,
                why,
                process,
            });
        }
        MemoryWrites::Unknown => survey.found.extend(unknown(object, allowed)),
    }
    Ok(())
}

/// Whether this is a virtio disk that lets the guest send SCSI commands to the
/// host's device (`scsi=on`; before QEMU 9.1).
pub(super) fn has_scsi_passthrough(client: &mut Client, object: &Object) -> Result<bool, QmpError> {
    if !object.kind.starts_with("virtio-blk") {
        return Ok(false);
    }
    Ok(qom::property(client, &object.path, "scsi")? == Some(Value::Bool(true)))
}

fn unknown(object: Object, allowed: &Allowed) -> Option<Refusal> {
    let Object { path, kind } = object;
    if !allowed.has_type(&kind) {
        return Some(Refusal::Unknown { path, kind });
    }
    tracing::debug!(path, kind, "an unknown type, allowed on the command line");
    None
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::attach::preflight::Excludes;
    use crate::qmp::scripted;

    /// Surveys a scripted QEMU: it gives `answers` to these commands, and to others
    /// the answers of a small machine.
    fn survey_of(answers: &[(&str, Value)], allowed: &[&str]) -> Result<Survey, QmpError> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("qmp");
        let answers: Vec<_> = answers
            .iter()
            .map(|(command, answer)| ((*command).to_owned(), answer.clone()))
            .collect();
        let server = scripted::serve(&path, 99, move |request| {
            let human = request["arguments"]["command-line"].as_str();
            let command = human.unwrap_or(scripted::command(request));
            let own = answers.iter().find(|(name, _)| name == command);
            let answer = own.map_or_else(|| usual(command), |(_, answer)| answer.clone());
            vec![scripted::answered(request, Ok(answer))]
        });
        let mut client = Client::connect(&path, Duration::from_secs(20)).unwrap();
        let allowed = Allowed::new(allowed.iter().map(|&kind| kind.to_owned()));
        let found = survey(&mut client, &allowed);
        drop(client);
        server.join().unwrap();
        found
    }

    /// The only obstacle.
    fn refusal(answers: &[(&str, Value)], allowed: &[&str]) -> String {
        let found = survey_of(answers, allowed).unwrap().found;
        assert_eq!(found.len(), 1, "{found:?}");
        found[0].to_string()
    }

    /// Checks that there is a mode without an obstacle.
    fn movable(answers: &[(&str, Value)], allowed: &[&str]) {
        let found = survey_of(answers, allowed).unwrap().found;
        let all_modes = |refusal: &Refusal| refusal.excludes() == Excludes::AllModes;
        assert!(!found.iter().any(all_modes), "{found:?}");
    }

    fn usual(command: &str) -> Value {
        match command {
            "info qom-tree" => tree("VGA"),
            "info network" => json!(""),
            "qom-list-types" => json!([{ "name": "vga-of-the-future" }, { "name": "VGA" }]),
            "query-accelerators" => json!({ "enabled": "kvm", "present": ["kvm", "tcg"] }),
            "query-cpus-fast" => json!([{ "qom-path": "/machine/cpu" }]),
            "qom-get" => json!(false),
            _ => json!([]),
        }
    }

    fn tree(kind: &str) -> Value {
        let text = "/machine (pc-machine)\r\n  /peripheral (container)\r\n    /d (";
        json!(format!("{text}{kind})\r\n"))
    }

    fn node(driver: &str, file: &str, direct: bool) -> Value {
        json!([{ "node-name": "n", "drv": driver, "file": file, "cache": { "direct": direct } }])
    }

    #[test]
    fn an_unknown_device_is_refused_unless_it_is_allowed() {
        let future = [("info qom-tree", tree("vga-of-the-future"))];
        let text = refusal(&future, &[]);
        for part in [
            "/machine/peripheral/d",
            "vga-of-the-future",
            "does not know",
            "--allow-device vga-of-the-future",
        ] {
            assert!(text.contains(part), "{text}");
        }
        refusal(&future, &["another"]);
        movable(&future, &["vga-of-the-future"]);
        // An object that is not a device writes nothing.
        let part = [("info qom-tree", tree("timer-of-the-future"))];
        movable(&part, &[]);
        let object = json!([{ "name": "o", "type": "child<object-of-the-future>" }]);
        let text = refusal(&[("qom-list", object)], &[]);
        assert!(text.contains("/objects/o"), "{text}");
    }

    #[test]
    fn parts_of_a_refused_device_are_not_obstacles_of_their_own() {
        let with_part = |kind: &str| {
            let part = "      /virtio-backend (vhost-user-rng)\r\n";
            let whole = tree(kind);
            json!(format!("{}{part}", whole.as_str().unwrap()))
        };
        let text = refusal(
            &[("info qom-tree", with_part("vhost-user-rng-pci"))],
            &["vhost-user-rng-pci"],
        );
        assert!(text.contains("is a vhost-user-rng-pci"), "{text}");
        // It is refused for its part.
        let text = refusal(&[("info qom-tree", with_part("VGA"))], &[]);
        assert!(
            text.contains("virtio-backend is a vhost-user-rng,"),
            "{text}"
        );
    }

    #[test]
    fn unknown_network_backends_and_block_drivers() {
        let network = [("info network", json!("n0: index=0,type=future,x=y\r\n"))];
        let text = refusal(&network, &[]);
        assert!(text.contains("n0 is of the type future"), "{text}");
        movable(&network, &["future"]);
        let disk = [("query-named-block-nodes", node("zfs", "/dev/x", false))];
        let text = refusal(&disk, &[]);
        assert!(text.contains("node n is of the type zfs"), "{text}");
        movable(&disk, &["zfs"]);
    }

    #[test]
    fn passt_by_its_mode() {
        let passt = |info| json!(format!("p: index=0,type=passt,{info}\r\n"));
        for info in ["stream,connected to pid 7", "launching passt"] {
            movable(&[("info network", passt(info))], &[]);
        }
        // Another text may be that of one without vhost-user, too.
        for (info, why) in [
            ("vhost-user,connected to pid 7", "and another process, or"),
            ("of-the-future", "does not show that"),
            ("", "does not show that"),
        ] {
            let text = refusal(&[("info network", passt(info))], &["passt"]);
            assert!(text.contains("p is a passt network backend"), "{text}");
            assert!(text.contains(why), "{text}");
        }
    }

    #[test]
    fn disks_of_devices_and_other_processes() {
        for (driver, file) in [
            ("nvme", "nvme://0000:01:00.0/1"),
            ("nvme-io_uring", "/dev/ng0n1"),
            ("io_uring", "/dev/nvme0n1"),
            ("virtio-blk-vhost-user", "/run/backend"),
            ("virtio-blk-vhost-vdpa", "/dev/vhost-vdpa-0"),
            ("virtio-blk-vfio-pci", "/sys/bus/pci/devices/0"),
            (
                "iscsi",
                "json:{\"transport\": \"iser\", \"driver\": \"iscsi\"}",
            ),
            ("iscsi", "iser://192.0.2.1/iqn.2025-01.example:disk/0"),
        ] {
            let disk = [("query-named-block-nodes", node(driver, file, false))];
            let text = refusal(&disk, &[driver]);
            assert!(
                text.contains("in any mode") && text.contains(driver),
                "{text}"
            );
        }
    }

    #[test]
    fn iscsi_over_tcp_whatever_its_names_contain() {
        for file in [
            "iscsi://san.kaiserslautern.example/iqn.2025-01.example:disk/0",
            "iscsi://192.0.2.1/iqn.2025-01.example:advertiser/0",
            r#"json:{"transport": "tcp", "driver": "iscsi", "target": "iqn.2025-01.example:iser"}"#,
        ] {
            let disk = [("query-named-block-nodes", node("iscsi", file, false))];
            movable(&disk, &[]);
        }
        // A truncated description does not show the transport.
        let cut = r#"json:{"target": "iqn.2025-01.exa..."#;
        let disk = [("query-named-block-nodes", node("iscsi", cut, false))];
        let text = refusal(&disk, &[]);
        assert!(text.contains("node n is of the type iscsi"), "{text}");
        movable(&disk, &["iscsi"]);
    }

    #[test]
    fn a_tpm_whose_state_stays_at_its_host() {
        let tpm = |options: Value| {
            let tpm = json!([{ "id": "tpm0", "model": "tpm-crb", "options": options }]);
            [("query-tpm", tpm)]
        };
        movable(&tpm(json!({ "type": "emulator", "data": {} })), &[]);
        for (options, kind) in [
            (json!({ "type": "passthrough", "data": {} }), "passthrough"),
            (json!({ "type": "future" }), "future"),
            (json!({}), "unknown"),
        ] {
            let text = refusal(&tpm(options), &["future"]);
            let expected = format!("tpm0 is a TPM backend of the type {kind}, and its state");
            assert!(text.contains(&expected), "{text}");
        }
    }

    #[test]
    fn direct_io_is_recognized() {
        for (driver, direct) in [("file", true), ("host_device", true), ("iscsi", false)] {
            let disk = [(
                "query-named-block-nodes",
                node(driver, "iqn.2025:x", direct),
            )];
            let survey = survey_of(&disk, &[]).unwrap();
            assert_eq!(survey.pinning.is_some(), direct);
            assert!(survey.found.is_empty(), "{:?}", survey.found);
        }
        // A node without this field is an error.
        let odd = json!([{ "node-name": "n", "drv": "file" }]);
        survey_of(&[("query-named-block-nodes", odd)], &[]).unwrap_err();
    }

    #[test]
    fn devices_that_need_postcopy() {
        for kind in ["scsi-block", "scsi-generic", "vhost-scsi-pci"] {
            let text = refusal(&[("info qom-tree", tree(kind))], &[]);
            assert!(
                text.contains(kind) && text.contains("--mode postcopy"),
                "{text}"
            );
        }
        let nested = survey_of(&[("qom-get", json!(true))], &[]).unwrap().found;
        assert!(matches!(nested[..], [Refusal::Nested { feature: "vmx" }]));
    }

    #[test]
    fn every_obstacle_is_reported_not_only_the_first() {
        let survey = survey_of(
            &[
                ("info qom-tree", tree("vfio-pci")),
                ("info network", json!("n0: index=0,type=vhost-user\r\n")),
                ("query-named-block-nodes", node("nvme", "nvme://0/1", true)),
                ("qom-get", json!(true)),
            ],
            &[],
        );
        let found = survey.unwrap().found;
        let texts: Vec<_> = found.iter().map(ToString::to_string).collect();
        for (text, part) in texts.iter().zip(["vfio-pci", "n0", "nvme", "vmx"]) {
            assert!(text.contains(part), "{part:?} is not in: {text}");
        }
        assert_eq!(texts.len(), 4, "{texts:?}");
    }
}
