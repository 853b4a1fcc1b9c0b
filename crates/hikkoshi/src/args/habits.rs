//! What other tools call things, and what is called so here: `virsh migrate`, `qm migrate`, and
//! `nova live-migration` or `openstack server migrate`.

/// Disks.
const COPY_DISKS: &str = "disks are copied with --copy-disks, or some with --copy-disks=DISKS";

/// How long a migration takes.
const TIMEOUT: &str = "a migration has no time limit: --when-stalled says what happens if \
                       pre-copy does not converge, 'hikkoshi switch' ends pre-copy, 'hikkoshi \
                       cancel' the migration";

/// Less to send, or a slower guest.
const CONVERGE: &str = "the guest is not slowed down: --when-stalled \
                        switch or --mode hybrid end a pre-copy that does not converge";

/// Checks that are switched off.
const FORCE: &str = "no option allows everything: a refusal names the option that allows what it \
                     refuses, if there is one";

/// How the sides reach each other.
const CONNECTION: &str = "the source connects to the destination: give the address that 'hikkoshi \
                          receive' listens on, its invitation (--to), or --ssh HOST";

/// Encryption.
const ENCRYPTION: &str = "links are encrypted by an invitation (--to, --ssh) or by certificates \
                          (--tls-ca)";

/// Options of others, without `--`.
const OPTIONS: &[(&[&str], &str)] = &[
    (
        &["live", "online", "live-migration"],
        "the guest runs while it is moved, in each --mode",
    ),
    (
        &[
            "copy-storage-all",
            "copy-storage-inc",
            "copy-storage-synchronous-writes",
            "disks-port",
            "disks-uri",
            "migrate-disks",
            "with-local-disks",
            "block-migrate",
            "block-migration",
        ],
        COPY_DISKS,
    ),
    (
        &["shared-migration"],
        "disks that both hosts use are not copied; --shared-disks says it of disks of which that \
         is not found out",
    ),
    (&["timeout", "timeout-suspend", "timeout-postcopy"], TIMEOUT),
    (
        &[
            "auto-converge",
            "auto-converge-initial",
            "auto-converge-increment",
            "compressed",
            "comp-methods",
            "comp-mt-level",
            "comp-mt-threads",
            "comp-mt-dthreads",
            "comp-xbzrle-cache",
            "comp-zlib-level",
            "comp-zstd-level",
        ],
        CONVERGE,
    ),
    (
        &["unsafe", "force", "disk-over-commit", "disk-overcommit"],
        FORCE,
    ),
    (
        &["force-complete"],
        "'hikkoshi switch' ends the pre-copy of a migration that runs",
    ),
    (
        &["abort"],
        "'hikkoshi cancel' cancels a migration that runs",
    ),
    (
        &["persistent", "persistent-xml"],
        "a domain is made persistent at the destination by 'hikkoshi migrate --domain NAME \
         --persistent'",
    ),
    (
        &["undefinesource"],
        "this removes the domain's configuration at the source: --undefine-source, with --domain",
    ),
    (
        &["xml"],
        "what is specific to the destination is said there: 'hikkoshi receive --connect URI', with \
         --set or --xml",
    ),
    (
        &["dname"],
        "a domain has the same name at the destination as at the source",
    ),
    (
        &["offline"],
        "only guests that run, or are paused, are moved: copy the configuration of another one \
         ('virsh dumpxml', 'virsh define')",
    ),
    (
        &["targetstorage", "target-storage"],
        "the destination's QEMU or domain says which images are its disks; --copy-disks copies to \
         these",
    ),
    (
        &["graphicsuri"],
        "a client of the guest's display has to connect again, to the destination",
    ),
    (
        &["with-conntrack-state"],
        "what firewalls on the hosts have tracked is not moved (after-a-move.md)",
    ),
    (
        &[
            "p2p",
            "direct",
            "desturi",
            "migrateuri",
            "listen-address",
            "host",
            "target",
            "migration-network",
            "migration_network",
        ],
        CONNECTION,
    ),
    (
        &[
            "tls",
            "tls-destination",
            "tunnelled",
            "migration-type",
            "migration_type",
        ],
        ENCRYPTION,
    ),
    (
        &["postcopy"],
        "post-copy is --mode postcopy, or hybrid after a round of pre-copy",
    ),
    (
        &["postcopy-after-precopy"],
        "post-copy after a round of pre-copy is --mode hybrid",
    ),
    (
        &["postcopy-resume"],
        "an interrupted migration is resumed by --resume",
    ),
    (
        &["postcopy-bandwidth", "bwlimit", "migrate-speed", "speed"],
        "background pages are limited by --bandwidth, in each mode",
    ),
    (
        &["downtime", "migrate-downtime", "downtime-limit"],
        "the downtime is limited by --max-downtime",
    ),
    (
        &["parallel", "parallel-connections", "multifd-channels"],
        "there are several connections by default; their number is --links",
    ),
    (
        &["change-protection", "abort-on-error"],
        "this is always so: other programs cannot change the guest, and an error before the \
         handover leaves it at the source",
    ),
    (
        &["suspend"],
        "a guest that is paused at the source is paused at the destination",
    ),
    (
        &["wait"],
        "'hikkoshi migrate' ends when the guest has moved",
    ),
    (
        &["dry-run"],
        "'hikkoshi check' says whether a guest can be moved, and changes nothing",
    ),
    (&["quiet"], "no progress is shown with --progress none"),
];

/// Commands of others.
const COMMANDS: &[(&[&str], &str)] = &[
    (
        &[
            "domjobinfo",
            "list",
            "info",
            "progress",
            "live-migration-list",
            "server-migration-list",
        ],
        "status",
    ),
    (
        &[
            "domjobabort",
            "abort",
            "migrate_cancel",
            "live-migration-abort",
        ],
        "cancel",
    ),
    (
        &[
            "migrate-setspeed",
            "migrate-getspeed",
            "migrate-setmaxdowntime",
            "migrate-getmaxdowntime",
        ],
        "set",
    ),
    (
        &["migrate-postcopy", "live-migration-force-complete"],
        "switch",
    ),
    (
        &["live-migration", "remote-migrate", "send", "move"],
        "migrate",
    ),
    (&["incoming"], "receive"),
];

/// What is said to a user of `option` (with `--`).
pub(super) fn answer(option: &str) -> Option<&'static str> {
    let name = option.strip_prefix("--")?;
    let (_, answer) = OPTIONS.iter().find(|(names, _)| names.contains(&name))?;
    Some(answer)
}

/// The command that is called `command` elsewhere.
pub(super) fn command(command: &str) -> Option<&'static str> {
    let (_, name) = COMMANDS
        .iter()
        .find(|(names, _)| names.contains(&command))?;
    Some(name)
}

/// What is said of `text` as an address, if it is one of another tool.
pub(super) fn address(text: &str) -> Option<String> {
    if let Some((scheme, rest)) = text.split_once("://") {
        let (driver, transport) = scheme.split_once('+').unwrap_or((scheme, ""));
        if driver != "qemu" {
            return None;
        }
        let place = rest.split(['/', '?']).next().unwrap_or_default();
        let how = match transport.contains("ssh") {
            true => format!("write {}", by_ssh(place)),
            false => "write --ssh HOST, or the address that 'hikkoshi receive --connect URI' \
                      listens on there"
                .to_owned(),
        };
        return Some(format!(
            "is a URI of libvirt: {how} (the domain is --domain NAME)"
        ));
    }
    let rest = text.strip_prefix("tcp:").or(text.strip_prefix("tls:"))?;
    (rest.matches(':').count() == 1).then(|| format!("is an address of QEMU: write {rest}"))
}

/// The options for the `[USER@]HOST[:PORT]` of a URI. ssh wants neither the brackets of an IPv6
/// address nor a port in it.
fn by_ssh(place: &str) -> String {
    let (user, host) = match place.rsplit_once('@') {
        Some((user, host)) => (format!("{user}@"), host),
        None => (String::new(), place),
    };
    let bracketed = host.strip_prefix('[').and_then(|rest| rest.split_once(']'));
    let (host, port) = match bracketed {
        Some((host, port)) => (host, port.strip_prefix(':')),
        None => host
            .split_once(':')
            .map_or((host, None), |(host, port)| (host, Some(port))),
    };
    let host = if host.is_empty() { "HOST" } else { host };
    match port.filter(|port| !port.is_empty()) {
        Some(port) => format!("--ssh {user}{host} --rsh 'ssh -p {port}'"),
        None => format!("--ssh {user}{host}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_other_tools_are_answered() {
        for (text, says) in [
            ("qemu+ssh://root@h2/system", "write --ssh root@h2 "),
            (
                "qemu+ssh://root@h2:2222/system",
                "write --ssh root@h2 --rsh 'ssh -p 2222' (",
            ),
            ("qemu+ssh://[fe80::1]/system", "write --ssh fe80::1 ("),
            (
                "qemu+ssh://a@[fe80::1]:22/system",
                "write --ssh a@fe80::1 --rsh 'ssh -p 22' (",
            ),
            ("qemu+libssh2://h2?no_verify=1", "write --ssh h2 ("),
            ("qemu+ssh:///system", "write --ssh HOST ("),
            ("qemu:///system", "--ssh HOST"),
            ("tcp:h2:4444", "write h2:4444"),
        ] {
            let answer = address(text).unwrap();
            assert!(answer.contains(says), "{text}: {answer}");
        }
        for ours in [
            "h2:7000",
            "unix:/run/s",
            "[::1]:7000",
            "10.0.0.2:7000",
            "tcp:7000",
            // Of nothing that moves guests of QEMU.
            "http://h2:7000/",
        ] {
            assert_eq!(address(ours), None, "{ours}");
        }
    }

    #[test]
    fn what_is_said_of_options_of_others_is_so() {
        for (option, says) in [
            (
                "--shared-migration",
                "both hosts use are not copied; --shared-disks",
            ),
            ("--abort-on-error", "an error before the handover"),
            ("--force", "if there is one"),
            ("--xml", "'hikkoshi receive --connect URI'"),
            ("--force-complete", "'hikkoshi switch'"),
            ("--abort", "'hikkoshi cancel'"),
        ] {
            assert!(answer(option).unwrap().contains(says), "{option}");
        }
    }
}
