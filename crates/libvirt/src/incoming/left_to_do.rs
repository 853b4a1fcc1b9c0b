//! What libvirt was asked for besides the move of a domain, and has not done.

use std::fmt;
use std::path::{Path, PathBuf};

/// The guest is here, with all of its pages. This was not done.
#[cfg_attr(not(feature = "libvirt"), allow(dead_code))]
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum LeftToDo {
    /// The domain is not persistent.
    NotDefined {
        /// Why.
        what: String,
        /// What it is now.
        now: DomainNow,
        /// Where its configuration is.
        file: PathBuf,
        /// Whether it was also to be started when the host boots.
        autostart: bool,
    },
    /// libvirt does not know of its snapshots.
    Snapshots {
        /// Why.
        what: String,
        /// Where their descriptions are, in the order in which libvirt needs them.
        files: Vec<PathBuf>,
    },
    /// The domain is persistent, but is not started when the host boots.
    NotStarted {
        /// Why.
        what: String,
    },
}

/// What a domain is that was not made persistent.
#[cfg_attr(not(feature = "libvirt"), allow(dead_code))]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DomainNow {
    /// It has no configuration.
    Transient,
    /// The daemon does not know it any more, although it runs.
    Dropped,
    /// It has the configuration that this host had of it before.
    Older,
}

impl LeftToDo {
    /// For the people on both sides: what was not done with the domain `name`, and how to do it at
    /// its destination, with the daemon `uri`.
    pub(crate) fn text(&self, name: &str, uri: &str) -> String {
        Text {
            left: self,
            name,
            uri,
        }
        .to_string()
    }
}

struct Text<'a> {
    left: &'a LeftToDo,
    name: &'a str,
    uri: &'a str,
}

impl fmt::Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { left, name, uri } = self;
        match left {
            LeftToDo::NotDefined {
                what,
                now,
                file,
                autostart,
            } => {
                let (state, file) = (
                    match now {
                        DomainNow::Dropped => {
                            "It runs, but libvirt has dropped it from its list: restart libvirt's \
                             daemon, which finds it again"
                        }
                        DomainNow::Transient => "It is transient, and is gone when it is shut down",
                        DomainNow::Older => {
                            "It was persistent there already: when it is started again, it has that \
                             older configuration"
                        }
                    },
                    file.display(),
                );
                let then = match autostart {
                    true => format!(", then 'virsh --connect {uri} autostart {name}'"),
                    false => String::new(),
                };
                write!(
                    f,
                    "the domain {name} was not made persistent: {what}. {state}. Its configuration \
                     is in {file}: 'virsh --connect {uri} define {file}' makes it persistent{then}. \
                     Remove the file afterwards: it may have passwords"
                )
            }
            LeftToDo::Snapshots { what, files } => {
                let first = files
                    .first()
                    .map_or(Path::new("").display(), |file| file.display());
                write!(
                    f,
                    "libvirt does not know of all snapshots of the domain {name}: {what}. Their \
                     content is in the images of its disks, and their descriptions are in {} files, the first of which is \
                     {first}: 'virsh --connect {uri} snapshot-create {name} FILE --redefine' for \
                     each, in the order of their names, with --current for the one whose name has \
                     'current'. Remove the files afterwards: they may have passwords",
                    files.len()
                )
            }
            LeftToDo::NotStarted { what } => write!(
                f,
                "the domain {name} is persistent, but is not started when the host boots: {what} \
                 (next: 'virsh --connect {uri} autostart {name}')"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_to_do_is_said() {
        let mut left = LeftToDo::NotDefined {
            what: "libvirt: the disk is full".to_owned(),
            now: DomainNow::Transient,
            file: "/run/hikkoshi/domain-1.not-defined.xml".into(),
            autostart: false,
        };
        let define =
            "'virsh --connect qemu:///system define /run/hikkoshi/domain-1.not-defined.xml'";
        let said = left.text("guest", "qemu:///system");
        assert!(said.starts_with("the domain guest was not made persistent: libvirt: the disk"));
        assert!(
            said.contains(define) && !said.contains("autostart"),
            "{said}"
        );
        if let LeftToDo::NotDefined { autostart, now, .. } = &mut left {
            (*autostart, *now) = (true, DomainNow::Dropped);
        }
        let said = left.text("guest", "qemu:///system");
        assert!(
            said.contains("then 'virsh --connect qemu:///system autostart guest'")
                && said.contains("restart libvirt's daemon"),
            "{said}"
        );
        if let LeftToDo::NotDefined { now, .. } = &mut left {
            *now = DomainNow::Older;
        }
        let said = left.text("guest", "qemu:///system");
        assert!(
            said.contains("older configuration") && !said.contains("transient"),
            "{said}"
        );
        let snapshots = LeftToDo::Snapshots {
            what: "libvirt: read-only".to_owned(),
            files: vec![
                "/run/a.000.snapshot.xml".into(),
                "/run/a.001.snapshot.xml".into(),
            ],
        };
        let said = snapshots.text("guest", "qemu:///system");
        for part in [
            "2 files, the first of which is /run/a.000.snapshot.xml",
            "'virsh --connect qemu:///system snapshot-create guest FILE --redefine'",
        ] {
            assert!(said.contains(part), "{said}");
        }
        let what = "libvirt: read-only".to_owned();
        let said = LeftToDo::NotStarted { what }.text("guest", "qemu:///system");
        assert!(said.contains("is persistent, but is not started"), "{said}");
        assert!(!said.contains("define"), "{said}");
    }
}
