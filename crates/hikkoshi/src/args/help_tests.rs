//! The help: its headings, the options under them, and the options that are hidden.

use std::fmt::Write as _;

use clap::CommandFactory;

use super::Args;

/// What is said about each command and each option.
const PAGE: &str = include_str!("../../../../docs/command-line.md");

fn command() -> clap::Command {
    let mut command = Args::command();
    command.build();
    command
}

/// The commands that `--help` lists, without `help` itself.
fn visible_commands() -> Vec<clap::Command> {
    let command = command();
    let commands = command.get_subcommands();
    commands
        .filter(|command| !command.is_hide_set() && command.get_name() != "help")
        .cloned()
        .collect()
}

/// `HEADING: option option ...`, a line a heading, in the order of the help.
fn visible(name: &str) -> String {
    let command = command();
    let command = command.find_subcommand(name).unwrap();
    let mut headings: Vec<(&str, Vec<String>)> = Vec::new();
    for arg in command.get_arguments().filter(|arg| !arg.is_hide_set()) {
        let name = match arg.get_long() {
            Some(long) => format!("--{long}"),
            None => arg.get_id().as_str().to_owned(),
        };
        let heading = arg.get_help_heading().unwrap_or("-");
        match headings.iter_mut().find(|(known, _)| *known == heading) {
            Some((_, names)) => names.push(name),
            None => headings.push((heading, vec![name])),
        }
    }
    headings
        .iter()
        .fold(String::new(), |mut text, (heading, names)| {
            writeln!(text, "{heading}: {}", names.join(" ")).unwrap();
            text
        })
}

#[test]
fn the_command_line_is_well_formed() {
    Args::command().debug_assert();
}

#[test]
fn options_stand_under_their_headings() {
    assert_eq!(
        visible("migrate"),
        "-: address --help\n\
         Connection: --to --name --qmp --domain --connect --stall-timeout\n\
         By ssh: --ssh --rsh --remote-hikkoshi --remote-template --remote-name --remote-qmp \
         --remote-connect --remote-listen --remote-option\n\
         Migration: --mode --max-downtime --when-stalled --bandwidth --compress --allow-cpu-mismatch \
         --no-keep-frames --copy-disks --shared-disks --drop-snapshots --drop-bitmaps \
         --quit-source --undefine-source --persistent --autostart --allow-device \
         --allow-managed\n\
         Tuning: --links --rounds --max-rounds --read-ahead\n\
         Recovery: --retry-for --resume --journal --journal-link --give-up --other-side-is-lost\n\
         Security: --plaintext --tls-ca --tls-cert --tls-key\n\
         Output: --progress --json --report --verbose\n"
    );
    assert_eq!(
        visible("receive"),
        "Connection: --listen --qmp --connect --set --xml --only-domain --allow-qemu-arguments \
         --template --wait-for --stall-timeout --name --advertise\n\
         Migration: --allow-overcommit --allow-device\n\
         Recovery: --retry-for --resume --journal --journal-link --give-up --other-side-is-lost\n\
         Tuning: --fault-threads --collapse\n\
         Security: --invite --plaintext --tls-ca --tls-cert --tls-key\n\
         Output: --progress --json --report --verbose\n\
         -: --help\n"
    );
    assert_eq!(
        visible("daemon"),
        "Connection: --listen --advertise --max-guests\n\
         Security: --admit --max-guests-per-certificate --tls-ca --tls-cert --tls-key\n\
         Recovery: --journal\n\
         -: --help\n"
    );
    assert_eq!(
        visible("status"),
        "-: guest --help\n\
         Connection: --journal --host\n\
         By ssh: --rsh --remote-hikkoshi --remote-journal\n\
         Security: --tls-ca --tls-cert --tls-key\n\
         Output: --all --watch --json\n"
    );
    assert_eq!(
        visible("set"),
        "-: guest --help\n\
         Connection: --journal\n\
         Migration: --bandwidth --max-downtime\n"
    );
    for name in ["switch", "cancel"] {
        assert_eq!(visible(name), "-: guest --help\nConnection: --journal\n");
    }
    assert_eq!(
        visible("check"),
        "Connection: --qmp --domain --connect --to\n\
         Migration: --allow-device --allow-managed --allow-cpu-mismatch --copy-disks --shared-disks \
         --drop-snapshots --drop-bitmaps\n\
         Recovery: --journal\n\
         Output: --print-destination --json\n\
         -: --help\n"
    );
    assert_eq!(
        visible("dirty-rate"),
        "Connection: --qmp --domain --connect\n\
         Measurement: --seconds --interval --block --max-cost\n\
         Output: --map --json\n\
         -: --help\n"
    );
    assert_eq!(
        visible("dashboard"),
        "Connection: --listen --journal --host\n\
         By ssh: --rsh --remote-hikkoshi --remote-journal\n\
         Security: --tls-ca --tls-cert --tls-key --allow-remote --allow-host\n\
         -: --help\n"
    );
    assert_eq!(
        visible("estimate"),
        "-: address --help\n\
         Connection: --to --qmp --domain --connect\n\
         Migration: --bandwidth --compress --max-downtime --when-stalled --allow-cpu-mismatch \
         --allow-device --allow-managed\n\
         Tuning: --links --rounds --max-rounds\n\
         Measurement: --seconds --max-cost --probe-limit --round-trip\n\
         Security: --plaintext --tls-ca --tls-cert --tls-key\n\
         Output: --json\n"
    );
    assert_eq!(
        visible("evacuate"),
        "-: guests --help\n\
         Connection: --all --to --connect\n\
         Migration: --plan --within --mode --at-once --at-once-to --bandwidth --bandwidth-to \
         --migrate-option\n\
         Measurement: --line --seconds\n\
         Security: --tls-ca --tls-cert --tls-key\n\
         Recovery: --journal\n\
         Output: --json\n"
    );
    assert_eq!(
        visible("invite"),
        "Connection: --template --name --connect --qmp --wait-for --receive-option --withdraw\n\
         Output: --json\n\
         Recovery: --journal\n\
         -: --help\n"
    );
    assert_eq!(
        visible("report"),
        "-: files --help\n\
         Output: --evacuation --output\n\
         Recovery: --journal\n"
    );
    assert_eq!(
        visible("history"),
        "Output: --since --guest --json\n\
         Recovery: --journal\n\
         -: --help\n"
    );
    assert_eq!(visible_commands().len(), 15, "one is not in this test");
}

#[test]
fn options_for_benchmarks_and_tests_are_hidden() {
    let hidden = |name: &str| {
        let command = command();
        let command = command.find_subcommand(name).unwrap();
        let hidden = command.get_arguments().filter(|arg| arg.is_hide_set());
        let mut hidden: Vec<_> = hidden
            .filter_map(clap::Arg::get_long)
            .map(str::to_owned)
            .collect();
        hidden.sort_unstable();
        hidden
    };
    assert_eq!(
        hidden("migrate"),
        [
            "background-delay",
            "no-drain",
            "no-hot-first",
            "no-in-flight-limit",
            "no-priority",
            "poll"
        ]
    );
    assert_eq!(hidden("receive"), ["no-priority", "poll"]);
    assert_eq!(hidden("evacuate"), ["host-facts"]);
    for command in visible_commands() {
        let name = command.get_name();
        if !["migrate", "receive", "evacuate"].contains(&name) {
            assert_eq!(hidden(name), [""; 0], "{name}");
        }
    }
}

/// `-h` has one line an option; what needs more is in `--help`.
#[test]
fn short_help_is_one_line_an_option() {
    for command in visible_commands() {
        let name = command.get_name();
        for arg in command.get_arguments().filter(|arg| !arg.is_hide_set()) {
            let help = arg.get_help().unwrap().to_string();
            assert!(help.len() <= 90, "{name} {}: {help}", arg.get_id());
            assert!(!help.ends_with('.'), "{help}");
        }
        let short = command.clone().render_help().to_string();
        let long = command.clone().render_long_help().to_string();
        for (text, columns) in [(short, 130), (long, 104)] {
            for line in text.lines() {
                assert!(line.chars().count() <= columns, "{line}");
            }
        }
    }
}

/// The part of the page under this heading.
fn section(heading: &str) -> &'static str {
    let (_, rest) = PAGE
        .split_once(&format!("\n## {heading}\n"))
        .unwrap_or_else(|| panic!("the page has no section {heading:?}"));
    rest.split_once("\n## ")
        .map_or(rest, |(section, _)| section)
}

/// Whether the text has this option, not only a longer one that begins so.
fn has_option(text: &str, option: &str) -> bool {
    let mut rest = text.split(option).skip(1);
    rest.any(|next| !next.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '-'))
}

/// The lines at the top of the page about this command.
fn synopses(name: &str) -> String {
    let block = PAGE.split("```").nth(1).unwrap();
    let begins = format!("hikkoshi {name} ");
    let mut is_of_command = false;
    let lines = block.lines().filter(|line| {
        if !line.starts_with(' ') {
            is_of_command = line.starts_with(&begins);
        }
        is_of_command
    });
    lines.collect::<Vec<_>>().join("\n")
}

#[test]
fn the_page_has_each_command_and_each_option_under_its_heading() {
    for command in visible_commands() {
        let name = command.get_name();
        let synopses = synopses(name);
        assert!(!synopses.is_empty(), "{name} has no synopsis");
        for arg in command.get_arguments() {
            let Some(long) = arg.get_long().filter(|long| *long != "help") else {
                continue;
            };
            let option = format!("--{long}");
            let heading = match arg.is_hide_set() {
                true => "Hidden options",
                false => arg.get_help_heading().unwrap_or("no heading"),
            };
            assert!(
                has_option(section(heading), &option),
                "{name} {option} is not in the section {heading:?}"
            );
            assert!(
                arg.is_hide_set()
                    || synopses.contains("[OPTIONS]")
                    || has_option(&synopses, &option),
                "{option} is not in the synopsis of {name}"
            );
        }
    }
}
