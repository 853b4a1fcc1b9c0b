//! The agent's parameters: Pacemaker passes each as `OCF_RESKEY_NAME`. One table has them all; the
//! metadata and the reading of the environment follow from it.

use std::path::PathBuf;
use std::time::Duration;

use super::answer::Answer;
use crate::args::{parse_guest_name, run_folder};

/// A parameter, as the metadata describes it.
#[derive(Debug)]
pub(super) struct Parameter {
    /// Its name.
    pub(super) name: &'static str,
    /// OCF's type: `string`, `integer` or `boolean`.
    pub(super) kind: &'static str,
    /// The value if it is not given.
    pub(super) default: &'static str,
    /// In a few words.
    pub(super) short: &'static str,
    /// In full.
    pub(super) long: &'static str,
}

/// All of them.
pub(super) const PARAMETERS: &[Parameter] = &[
    Parameter {
        name: "name",
        kind: "string",
        default: "",
        short: "Name of the guest",
        long: "Name of the guest, as in the file of the daemons' --admit, and {name} in the template. \
               The default is the name of the resource.",
    },
    Parameter {
        name: "template",
        kind: "string",
        default: "",
        short: "Template of the guest's QEMU",
        long: "File with the command line of the guest's QEMU (docs/receiving-many.md), the same on \
               all nodes. Either template or domain is required.",
    },
    Parameter {
        name: "domain",
        kind: "string",
        default: "",
        short: "File with the libvirt domain",
        long: "File with the XML of a libvirt domain, the same on all nodes. The domain's name is \
               the guest's. Either template or domain is required.",
    },
    Parameter {
        name: "uri",
        kind: "string",
        default: "qemu:///system",
        short: "libvirt daemon",
        long: "URI of the libvirt daemon of a domain, on each node.",
    },
    Parameter {
        name: "mode",
        kind: "string",
        default: "hybrid",
        short: "Mode of a move",
        long: "precopy, postcopy, hybrid or auto, as hikkoshi migrate --mode.",
    },
    Parameter {
        name: "bandwidth",
        kind: "string",
        default: "",
        short: "Limit for background traffic",
        long: "As hikkoshi migrate --bandwidth, such as 400Mbit. Without it there is no limit.",
    },
    Parameter {
        name: "max_downtime",
        kind: "string",
        default: "",
        short: "Longest pause in pre-copy",
        long: "As hikkoshi migrate --max-downtime, such as 300ms.",
    },
    Parameter {
        name: "copy_disks",
        kind: "boolean",
        default: "false",
        short: "Copy the guest's disks",
        long: "Whether a move copies the guest's disks (hikkoshi migrate --copy-disks). After a \
               failure of its node, such a guest cannot be started elsewhere with what it has \
               written.",
    },
    Parameter {
        name: "options",
        kind: "string",
        default: "",
        short: "More options of hikkoshi migrate",
        long: "More options of hikkoshi migrate, as words of a command line.",
    },
    Parameter {
        name: "port",
        kind: "integer",
        default: "7000",
        short: "Port of the daemons",
        long: "TCP port of hikkoshi daemon on every node.",
    },
    Parameter {
        name: "address_map",
        kind: "string",
        default: "",
        short: "Addresses of the nodes",
        long: "Addresses for moves, as NODE:ADDRESS with spaces between, such as \
               \"n1:10.1.0.1 n2:10.1.0.2\". A node that is not in it is reached by its name.",
    },
    Parameter {
        name: "tls_ca",
        kind: "string",
        default: "/etc/hikkoshi/ca.crt",
        short: "Certificate of the authority",
        long: "File with the certificate of the authority that has issued the nodes' certificates.",
    },
    Parameter {
        name: "tls_cert",
        kind: "string",
        default: "/etc/hikkoshi/host.crt",
        short: "Certificate of the node",
        long: "File with this node's certificate, which the daemons of the others admit.",
    },
    Parameter {
        name: "tls_key",
        kind: "string",
        default: "/etc/hikkoshi/host.key",
        short: "Key of the node",
        long: "File with the key of this node's certificate.",
    },
    Parameter {
        name: "on_timeout",
        kind: "string",
        default: "cancel",
        short: "What is done with a slow move",
        long: "What is done when the time of migrate_to is nearly over and the guest is not handed \
               over: cancel (it stays where it is, and the move has failed) or postcopy (pre-copy \
               ends, the guest is handed over, and the rest of its memory follows).",
    },
    Parameter {
        name: "refresh",
        kind: "integer",
        default: "60",
        short: "When Pacemaker looks again after a failed move",
        long: "Pacemaker leaves a guest alone whose migrate_to has failed (on-fail=block), and does \
               not watch it any more. After so many seconds a process of the agent, which outlives \
               it, has it look at all nodes again (crm_resource --refresh): the guest is watched, and the move tried again if it \
               is still ordered. 0: never.",
    },
    Parameter {
        name: "shutdown",
        kind: "string",
        default: "90",
        short: "Time for a shutdown of the guest",
        long: "How many seconds the guest may take to shut down before its QEMU is ended. 0 ends it \
               at once. The timeout of the action stop limits it, too.",
    },
    Parameter {
        name: "folder",
        kind: "string",
        default: "",
        short: "Run folder",
        long: "The run folder of the daemon (--journal). The default is /run/hikkoshi.",
    },
];

/// How the guest is started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Machine {
    /// A QEMU, from this template.
    Template(PathBuf),
    /// A libvirt domain, from this file, by the daemon at `uri`.
    Domain { file: PathBuf, uri: String },
}

/// What is done with a move that takes too long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OnTimeout {
    Cancel,
    Postcopy,
}

/// The values of the parameters.
#[derive(Debug, Clone)]
pub(super) struct Parameters {
    pub(super) name: String,
    pub(super) machine: Machine,
    pub(super) mode: String,
    pub(super) bandwidth: Option<String>,
    pub(super) max_downtime: Option<String>,
    pub(super) copy_disks: bool,
    pub(super) options: String,
    pub(super) port: u16,
    pub(super) addresses: Vec<(String, String)>,
    pub(super) tls_ca: String,
    pub(super) tls_cert: String,
    pub(super) tls_key: String,
    pub(super) on_timeout: OnTimeout,
    pub(super) shutdown: Duration,
    /// The name of the resource.
    pub(super) resource: String,
    pub(super) refresh: Option<Duration>,
    pub(super) folder: PathBuf,
}

/// Why the parameters cannot be used.
#[derive(Debug)]
pub(super) struct Invalid {
    pub(super) answer: Answer,
    pub(super) why: String,
}

impl Invalid {
    pub(super) fn new(answer: Answer, why: impl Into<String>) -> Self {
        let why = why.into();
        Self { answer, why }
    }
}

impl Parameters {
    /// Reads them by `variable`, which returns the value of an environment variable.
    ///
    /// # Errors
    /// One is missing or has a value that it cannot have.
    pub(super) fn read(variable: impl Fn(&str) -> Option<String>) -> Result<Self, Invalid> {
        let given = |name: &str| {
            let value = variable(&format!("OCF_RESKEY_{name}"));
            value.filter(|value| !value.is_empty())
        };
        let value = |name: &str| {
            let known = PARAMETERS.iter().find(|parameter| parameter.name == name);
            given(name).unwrap_or_else(|| known.map_or("", |known| known.default).to_owned())
        };
        let wrong = |name: &str, why: &str| {
            let value = value(name);
            Invalid::new(Answer::NotConfigured, format!("{name}={value}: {why}"))
        };
        let seconds = |name: &str| {
            let number = value(name).trim_end_matches('s').parse::<u64>().ok();
            number
                .filter(|seconds| *seconds <= 86_400)
                .map(Duration::from_secs)
                .ok_or_else(|| wrong(name, "it is a number of seconds, a day at most"))
        };
        // A clone has its number after a colon.
        let instance = variable("OCF_RESOURCE_INSTANCE").unwrap_or_default();
        let instance = instance.split(':').next().unwrap_or_default().to_owned();
        let name = parse_guest_name(&given("name").unwrap_or_else(|| instance.clone()))
            .map_err(|why| wrong("name", &why))?;
        let machine = match (given("template"), given("domain")) {
            (Some(template), None) => Machine::Template(template.into()),
            (None, Some(file)) => Machine::Domain {
                file: file.into(),
                uri: value("uri"),
            },
            _ => {
                let why = "one of the parameters template and domain is required, and not both";
                return Err(Invalid::new(Answer::NotConfigured, why));
            }
        };
        let mode = value("mode");
        if !["precopy", "postcopy", "hybrid", "auto"].contains(&mode.as_str()) {
            return Err(wrong("mode", "it is precopy, postcopy, hybrid or auto"));
        }
        let copy_disks = match value("copy_disks").to_ascii_lowercase().as_str() {
            "1" | "true" | "yes" | "on" | "y" => true,
            "0" | "false" | "no" | "off" | "n" => false,
            _ => return Err(wrong("copy_disks", "it is true or false")),
        };
        let addresses = value("address_map")
            .split_whitespace()
            .map(|pair| pair.split_once(':'))
            .map(|pair| pair.map(|(node, address)| (node.to_owned(), address.to_owned())))
            .collect::<Option<Vec<_>>>()
            .filter(|pairs| pairs.iter().all(|(a, b)| !a.is_empty() && !b.is_empty()))
            .ok_or_else(|| wrong("address_map", "each word is NODE:ADDRESS"))?;
        Ok(Self {
            name,
            machine,
            mode,
            bandwidth: given("bandwidth"),
            max_downtime: given("max_downtime"),
            copy_disks,
            options: value("options"),
            port: value("port")
                .parse()
                .ok()
                .filter(|port| *port > 0)
                .ok_or_else(|| wrong("port", "it is not a TCP port"))?,
            addresses,
            tls_ca: value("tls_ca"),
            tls_cert: value("tls_cert"),
            tls_key: value("tls_key"),
            on_timeout: match value("on_timeout").as_str() {
                "cancel" => OnTimeout::Cancel,
                "postcopy" => OnTimeout::Postcopy,
                _ => return Err(wrong("on_timeout", "it is cancel or postcopy")),
            },
            shutdown: seconds("shutdown")?,
            resource: instance,
            refresh: Some(seconds("refresh")?).filter(|after| !after.is_zero()),
            folder: run_folder(given("folder").map(PathBuf::from).as_deref()),
        })
    }

    /// The address of the daemon of this node.
    pub(super) fn address(&self, node: &str) -> String {
        let known = self.addresses.iter().find(|(name, _)| name == node);
        let host = known.map_or(node, |(_, address)| address.as_str());
        // An IPv6 address.
        match host.contains(':') && !host.starts_with('[') {
            true => format!("[{host}]:{}", self.port),
            false => format!("{host}:{}", self.port),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(given: &[(&str, &str)]) -> Result<Parameters, Invalid> {
        Parameters::read(|name| {
            let found = given.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        })
    }

    const TEMPLATE: (&str, &str) = ("OCF_RESKEY_template", "/t");
    const INSTANCE: (&str, &str) = ("OCF_RESOURCE_INSTANCE", "web1:0");

    #[test]
    fn defaults_are_those_of_the_table() {
        let parameters = read(&[TEMPLATE, INSTANCE]).unwrap();
        assert_eq!(parameters.name, "web1");
        assert_eq!(parameters.machine, Machine::Template("/t".into()));
        assert_eq!(parameters.on_timeout, OnTimeout::Cancel);
        assert_eq!(parameters.shutdown, Duration::from_secs(90));
        assert_eq!(parameters.refresh, Some(Duration::from_secs(60)));
        assert_eq!(parameters.address("n1"), "n1:7000");
    }

    #[test]
    fn nodes_have_addresses() {
        let map = ("OCF_RESKEY_address_map", "n1:10.0.0.1  n2:fd00::2");
        let parameters = read(&[TEMPLATE, INSTANCE, map, ("OCF_RESKEY_port", "7")]).unwrap();
        assert_eq!(parameters.address("n1"), "10.0.0.1:7");
        assert_eq!(parameters.address("n2"), "[fd00::2]:7");
        assert_eq!(parameters.address("n3"), "n3:7");
    }

    #[test]
    fn wrong_values_are_named() {
        for (name, value) in [
            ("name", "a/b"),
            ("mode", "fast"),
            ("copy_disks", "maybe"),
            ("port", "0"),
            ("port", "x"),
            ("address_map", "n1"),
            ("on_timeout", "wait"),
            ("shutdown", "-1"),
        ] {
            let variable = format!("OCF_RESKEY_{name}");
            let error = read(&[TEMPLATE, INSTANCE, (&variable, value)]).unwrap_err();
            assert_eq!(error.answer, Answer::NotConfigured);
            assert!(error.why.contains(&format!("{name}={value}")), "{error:?}");
        }
        assert!(read(&[INSTANCE]).is_err());
        assert!(read(&[INSTANCE, TEMPLATE, ("OCF_RESKEY_domain", "/d")]).is_err());
    }
}
