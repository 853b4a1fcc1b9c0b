//! A guest that a manager of hosts owns, such as OpenStack or Proxmox VE.
//!
//! The manager decides where the guest is, and does not know of a move from outside: it may start
//! the guest a second time on the same disks, or destroy a domain whose pages have not been sent.
//! `docs/other-managers.md` says what each does. Whose a guest is, its QEMU's command line shows.

use std::io;

use hikkoshi_linux::Process;

use super::Refusal;
use crate::process::options::started_options;

/// An option of QEMU, and a part of its value that only this manager's guests have.
struct Sign {
    option: &'static str,
    part: &'static str,
    manager: &'static str,
}

const SIGNS: &[Sign] = &[
    // Of every distribution: "OpenStack Nova", "OpenStack Compute".
    Sign {
        option: "smbios",
        part: "product=OpenStack ",
        manager: "OpenStack",
    },
    Sign {
        option: "smbios",
        part: "manufacturer=KubeVirt",
        manager: "KubeVirt",
    },
    Sign {
        option: "smbios",
        part: "manufacturer=oVirt",
        manager: "oVirt",
    },
    Sign {
        option: "smbios",
        part: "product=CloudStack ",
        manager: "Apache CloudStack",
    },
    Sign {
        option: "pidfile",
        part: "/run/qemu-server/",
        manager: "Proxmox VE",
    },
    Sign {
        option: "pidfile",
        part: "/run/ganeti/",
        manager: "Ganeti",
    },
];

/// Refuses the guest of a QEMU that a manager has started.
///
/// # Errors
/// The command line cannot be read.
pub(crate) fn check(process: &Process) -> io::Result<Option<Refusal>> {
    Ok(manager(&started_options(process)?))
}

fn manager(options: &[(String, String)]) -> Option<Refusal> {
    options.iter().find_map(|(option, value)| {
        let is_sign = |sign: &&Sign| sign.option == option && value.contains(sign.part);
        SIGNS.iter().find(is_sign).map(|sign| Refusal::Managed {
            manager: sign.manager,
            sign: format!("-{option} {value}"),
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(words: &[(&str, &str)]) -> Option<String> {
        let options: Vec<_> = words
            .iter()
            .map(|(option, value)| ((*option).to_owned(), (*value).to_owned()))
            .collect();
        manager(&options).map(|refusal| refusal.to_string())
    }

    #[test]
    fn managers_are_known_by_the_command_line() {
        for (option, value, manager) in [
            (
                "smbios",
                "type=1,manufacturer=OpenStack Foundation,product=OpenStack Nova,version=2015.1.0",
                "OpenStack",
            ),
            (
                "smbios",
                "type=1,manufacturer=RDO,product=OpenStack Compute,version=18.2.3-1.el7",
                "OpenStack",
            ),
            (
                "smbios",
                "type=1,manufacturer=KubeVirt,product=None,family=KubeVirt",
                "KubeVirt",
            ),
            ("pidfile", "/var/run/qemu-server/100.pid", "Proxmox VE"),
            (
                "pidfile",
                "/var/run/ganeti/kvm-hypervisor/pid/web",
                "Ganeti",
            ),
        ] {
            let why = found(&[("name", "web"), (option, value)]).unwrap();
            assert!(why.contains(manager) && why.contains(value), "{why}");
        }
    }

    #[test]
    fn others_are_nobodys() {
        for (option, value) in [
            ("name", "guest=product=OpenStack Nova"),
            ("smbios", "type=1,manufacturer=Supermicro,product=X11"),
            ("pidfile", "/run/web.pid"),
        ] {
            assert_eq!(found(&[(option, value)]), None);
        }
    }
}
