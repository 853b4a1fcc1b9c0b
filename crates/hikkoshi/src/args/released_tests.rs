//! The command line of the release is still accepted: `tests/released/options` has its commands,
//! options and values, which keep their names; [`VALUES`] and [`COMMANDS`] have what is not there.
//!
//! After a release, `HIKKOSHI_WRITE_RELEASED=1 cargo test -p hikkoshi released` writes what it has.
//! A change that removes something breaks a promise (`CONTRIBUTING.md`).

use std::collections::BTreeSet;
use std::path::PathBuf;

use clap::{Arg, Command, CommandFactory, Parser};

use super::Args;

/// The word between a command and an option that it cannot do without.
const REQUIRES: &str = " requires ";

/// Forms of values that clap does not list, for `migrate`.
const VALUES: &[(&str, &[&str])] = &[
    ("--mode", &["precopy", "postcopy", "hybrid", "auto"]),
    ("--bandwidth", &["400Mbit", "50MB", "50MiB", "1.5G", "none"]),
    ("--compress", &["auto", "off", "lz4", "zstd"]),
    ("--max-downtime", &["300ms", "1.5s", "300", "none"]),
    ("--max-rounds", &["7", "none"]),
    ("--retry-for", &["0", "90", "90s", "15m", "2h", "none"]),
    ("--stall-timeout", &["20s", "1h"]),
    ("--read-ahead", &["adaptive", "off", "8"]),
    ("--copy-disks", &["vda"]),
    ("--shared-disks", &["vda,vdb"]),
    ("--links", &["1", "16"]),
];

/// Whole commands: what they can do without, and options that may have no value.
const COMMANDS: &[&str] = &[
    "migrate --qmp /q --to -",
    "migrate --qmp /q unix:/s",
    "migrate --domain web --ssh root@b",
    "migrate --qmp /q h:1 --plaintext --copy-disks",
    "migrate --qmp /q h:1 --plaintext --shared-disks",
    "migrate --resume",
    "migrate --resume=/j",
    "receive --listen h:1 --qmp /q",
    "receive --listen h:1 --connect qemu:///system",
    "receive --listen h:1 --template /t",
    "receive --resume",
    "check --qmp /q",
    "check --domain web",
    "dirty-rate --qmp /q",
    "estimate --qmp /q --bandwidth 1Gbit",
    "status",
    "status web",
    "set web --bandwidth none",
    "switch web",
    "cancel web",
    "dashboard",
    "history",
];

/// What may be typed, a line each: a command, one of its options with or without a value, one of an
/// option's values. What `--help` does not show is not promised.
fn accepted(command: &Command) -> BTreeSet<String> {
    let mut lines = BTreeSet::new();
    let commands = command.get_subcommands();
    for command in commands.filter(|command| !command.is_hide_set() && command.get_name() != "help")
    {
        let name = command.get_name();
        lines.insert(name.to_owned());
        for arg in command.get_arguments().filter(|arg| !arg.is_hide_set()) {
            let words = words(arg);
            for word in &words {
                let value = if takes_value(arg) { " VALUE" } else { "" };
                lines.insert(format!("{name} {word}{value}"));
                let values = arg.get_possible_values();
                let values = values.iter().filter(|_| takes_value(arg));
                lines.extend(values.map(|value| format!("{name} {word} {}", value.get_name())));
            }
            if arg.is_required_set() {
                lines.extend(words.first().map(|word| format!("{name}{REQUIRES}{word}")));
            }
        }
    }
    lines
}

fn takes_value(arg: &Arg) -> bool {
    arg.get_action().takes_values()
}

/// How an argument is named: `--long`, its other names, and `-s`; an argument without an option by
/// its place.
fn words(arg: &Arg) -> Vec<String> {
    let long = arg.get_long_and_visible_aliases().unwrap_or_default();
    let short = arg.get_short_and_visible_aliases().unwrap_or_default();
    let mut words: Vec<String> = long.iter().map(|long| format!("--{long}")).collect();
    words.extend(short.iter().map(|short| format!("-{short}")));
    words.extend(arg.get_index().map(|index| format!("argument {index}")));
    words
}

/// What `now` no longer accepts of `kept`, and what it requires in addition.
fn broken(kept: &BTreeSet<String>, now: &BTreeSet<String>) -> Vec<String> {
    let is_required = |line: &&String| line.contains(REQUIRES);
    let gone = kept.difference(now).filter(|line| !is_required(line));
    let more = now.difference(kept).filter(|line| {
        let command = line.split(' ').next().unwrap_or_default();
        is_required(line) && kept.contains(command)
    });
    gone.chain(more).cloned().collect()
}

#[test]
fn released_options_are_accepted() {
    let mut command = Args::command();
    command.build();
    let now = accepted(&command);
    let path: PathBuf = [env!("CARGO_MANIFEST_DIR"), "tests/released/options"]
        .iter()
        .collect();
    if std::env::var_os("HIKKOSHI_WRITE_RELEASED").is_some() {
        let lines: Vec<_> = now.iter().map(String::as_str).collect();
        std::fs::write(&path, lines.join("\n") + "\n").unwrap();
    }
    let kept = std::fs::read_to_string(&path).unwrap();
    let kept: BTreeSet<String> = kept.lines().map(str::to_owned).collect();
    assert!(kept.contains("migrate --when-stalled stop"), "{kept:?}");
    let broken = broken(&kept, &now);
    assert!(broken.is_empty(), "released, and no longer so: {broken:#?}");
}

#[test]
fn released_commands_are_accepted() {
    let values = VALUES.iter().flat_map(|(option, values)| {
        let typed = move |value| format!("migrate --qmp /q h:1 --plaintext {option}={value}");
        values.iter().map(typed)
    });
    for command in COMMANDS
        .iter()
        .map(|&command| command.to_owned())
        .chain(values)
    {
        let words = ["hikkoshi"].into_iter().chain(command.split(' '));
        let parsed = Args::try_parse_from(words);
        parsed.unwrap_or_else(|error| panic!("{command}: {error}"));
    }
}

#[test]
fn a_changed_option_is_found() {
    let one = |arg: Arg| {
        let command = Command::new("top").subcommand(Command::new("go").arg(arg));
        accepted(&command)
    };
    let speed = || {
        let values = ["slow", "fast"];
        Arg::new("speed").long("speed").value_parser(values)
    };
    let kept = one(speed());
    assert!(broken(&kept, &one(speed().short('s'))).is_empty());
    assert_eq!(
        broken(&kept, &one(speed().required(true))),
        ["go requires --speed"]
    );
    let renamed = broken(&kept, &one(speed().long("rate")));
    assert_eq!(
        renamed,
        ["go --speed VALUE", "go --speed fast", "go --speed slow"]
    );
    let fewer = speed().value_parser(["slow", "faster"]);
    assert_eq!(broken(&kept, &one(fewer)), ["go --speed fast"]);
    let hidden = broken(&kept, &one(speed().hide(true)));
    assert_eq!(hidden, renamed);
    let flag = speed()
        .value_parser(clap::value_parser!(bool))
        .action(clap::ArgAction::SetTrue);
    assert_eq!(broken(&kept, &one(flag)), renamed);
}
