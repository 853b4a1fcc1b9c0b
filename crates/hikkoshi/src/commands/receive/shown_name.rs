//! How a guest is called at the destination, in messages and by `hikkoshi status`.
//!
//! | the destination | the guest is called |
//! | --- | --- |
//! | a libvirt domain | as the domain |
//! | the receiver of a daemon | by the name that it was invited by |
//! | a QEMU that was started from a template | by its `--name` |
//! | another QEMU | by its own name (`-name`), or the path of its QMP socket |

use std::path::{Path, PathBuf};

use hikkoshi_qemu::QemuIdentity;
use hikkoshi_qemu::qmp::MonitorAddress;

use crate::args::{DEFAULT_GUEST_NAME, Receive};
use crate::commands::monitor;
use crate::journal::absolute;
use crate::machines;

/// The QMP socket of the machine that was started from a template for the guest of this name.
pub(crate) fn machine_socket(run: &Path, name: &str) -> PathBuf {
    machines::socket(&absolute(run), name)
}

/// The name of the guest whose machine was started from a template, and has this QMP socket.
fn machine_name<'a>(run: &Path, socket: &'a Path) -> Option<&'a str> {
    let name = socket.file_stem()?.to_str()?;
    (machine_socket(run, name) == socket).then_some(name)
}

/// The guest that these options are about. The name of a domain is not known yet.
pub(super) fn by_options(args: &Receive) -> String {
    let default = args.guest.template.is_some().then_some(DEFAULT_GUEST_NAME);
    let named = args.name_for_daemon().or(args.template.name.as_deref());
    named.or(default).map_or_else(
        || {
            let guest = monitor::named_destination(args);
            guest.map_or_else(String::new, |guest| guest.to_string())
        },
        ToOwned::to_owned,
    )
}

/// The guest that this QEMU waits for.
pub(super) fn of_waiting(args: &Receive, qemu: &QemuIdentity) -> String {
    let is_named = args.name_for_daemon().is_some() || args.template.name.is_some();
    match &qemu.name {
        Some(name) if !is_named => name.clone(),
        _ => by_options(args),
    }
}

/// The guest of a migration that is resumed, whose journal is in `run`.
pub(super) fn of_resumed(args: &Receive, run: &Path, qemu: &QemuIdentity) -> String {
    let named = match &qemu.monitor {
        MonitorAddress::Domain { .. } => None,
        MonitorAddress::Socket(socket) => {
            let of_machine = machine_name(run, socket);
            let given = of_machine.filter(|name| *name != DEFAULT_GUEST_NAME);
            let receiver = args.name_for_daemon();
            receiver.or(given).or(qemu.name.as_deref()).or(of_machine)
        }
    };
    named.map_or_else(|| monitor::shown(&qemu.monitor), ToOwned::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Args, Command};
    use crate::journal::{DestinationEntry, decode};
    use clap::Parser;

    fn receive(words: &str) -> Receive {
        let words = words.split_whitespace().chain(["--journal=/run/h"]);
        match Args::parse_from(["hikkoshi"].into_iter().chain(words)).command {
            Command::Receive(receive) => *receive,
            Command::Receiver(receiver) => Receive::from(*receiver),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_guest_has_the_name_that_it_was_given() {
        for (words, name) in [
            ("receive --listen unix:/s --qmp /q", "/q"),
            (
                "receiver web1 --json=/r --listen unix:/s --advertise h:1 --qmp /q",
                "web1",
            ),
            ("receive --listen unix:/s --template /t", "guest"),
            ("receive --listen unix:/s --template /t --name web1", "web1"),
            ("receive --listen unix:/s --connect test:///default", ""),
        ] {
            assert_eq!(by_options(&receive(words)), name, "{words}");
        }
    }

    fn qemu(monitor: MonitorAddress, name: Option<&str>) -> QemuIdentity {
        let kept = include_bytes!("../../../tests/journals/destination-full.json");
        let kept = decode::<DestinationEntry>(kept).unwrap().qemu.identity;
        QemuIdentity {
            monitor,
            name: name.map(str::to_owned),
            ..kept
        }
    }

    #[test]
    fn a_guest_has_the_name_that_its_qemu_was_given() {
        let run = Path::new("/run/h");
        let socket = |path: &str| qemu(MonitorAddress::Socket(path.into()), Some("web"));
        for (words, name) in [
            ("receive --listen unix:/s --qmp /q", "web"),
            ("receive --listen unix:/s --template /t", "web"),
            ("receive --listen unix:/s --template /t --name web1", "web1"),
            (
                "receiver web1 --json=/r --listen unix:/s --advertise h:1 --qmp /q",
                "web1",
            ),
        ] {
            assert_eq!(of_waiting(&receive(words), &socket("/q")), name, "{words}");
        }
        for (path, name) in [
            ("/q", "web"),
            ("/run/h/machines/guest.qmp", "web"),
            ("/run/h/machines/web1.qmp", "web1"),
        ] {
            assert_eq!(
                of_resumed(&receive("receive --resume"), run, &socket(path)),
                name
            );
        }
    }

    #[test]
    fn it_keeps_its_name_when_it_is_resumed() {
        let run = Path::new("/run/h");
        let of = |words: &str, socket: &str| {
            let qemu = qemu(MonitorAddress::Socket(socket.into()), None);
            of_resumed(&receive(words), run, &qemu)
        };
        assert_eq!(of("receive --resume", "/run/h/machines/web1.qmp"), "web1");
        assert_eq!(of("receiver web2 --json=/r --resume", "/q"), "web2");
        for other in ["/q", "/run/h/web1.qmp", "/run/i/machines/web1.qmp"] {
            assert_eq!(of("receive --resume", other), other);
        }
        let domain = MonitorAddress::Domain {
            uri: "qemu:///system".into(),
            uuid: "6695eb01-f6a4-8304-79aa-97f2502e193f".into(),
            name: "db".into(),
        };
        assert_eq!(
            of_resumed(
                &receive("receiver x --json=/r --resume"),
                run,
                &qemu(domain, Some("other"))
            ),
            "db"
        );
    }

    #[test]
    fn a_machine_of_a_template_is_resumed_by_its_name() {
        let named = |words: &str| {
            let guest = monitor::named_destination(&receive(words))?;
            Some(guest.to_string())
        };
        let socket = Some("/run/h/machines/web1.qmp".to_owned());
        assert_eq!(named("receive --resume --name web1"), socket);
        assert_eq!(named("receive --resume"), None);
        assert_eq!(
            named("receive --listen unix:/s --template /t --name web1"),
            None
        );
    }
}
