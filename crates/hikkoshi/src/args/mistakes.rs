//! What an error about the command line suggests.
//!
//! clap suggests the most similar of all options, hidden ones too, however different it is: for
//! `--live` that was `--give-up`. Here an option of another tool is answered ([`habits`]), and
//! otherwise what is visible and similar is suggested, and only if it neither destroys anything nor
//! switches off a check.

use std::ffi::{OsStr, OsString};

use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Command, CommandFactory, Error, Parser};

use super::{Args, habits};

/// Options after which something does not exist any more, or that switch off a check that protects
/// data, as each that begins with `allow-` does.
const DESTRUCTIVE: [&str; 9] = [
    "drop-bitmaps",
    "drop-snapshots",
    "give-up",
    "other-side-is-lost",
    "plaintext",
    "quit-source",
    "shared-disks",
    "undefine-source",
    "withdraw",
];

/// Whether an option is not suggested, however similar it is.
fn is_destructive(long: &str) -> bool {
    DESTRUCTIVE.contains(&long) || long.starts_with("allow-")
}

/// Parses a command line.
///
/// # Errors
/// It is invalid, or asks for help.
pub(crate) fn parse(words: impl IntoIterator<Item = OsString>) -> Result<Args, Error> {
    let words: Vec<OsString> = words.into_iter().collect();
    Args::try_parse_from(&words).map_err(|error| explained(error, words.get(1).map(|word| &**word)))
}

/// The error with suggestions of our own. `first`: the first word after the program.
fn explained(mut error: Error, first: Option<&OsStr>) -> Error {
    let mut all = Args::command();
    all.build();
    match error.kind() {
        ErrorKind::UnknownArgument => {
            let Some(ContextValue::String(unknown)) = error.get(ContextKind::InvalidArg) else {
                return error;
            };
            let unknown = unknown.clone();
            let command = first.and_then(|name| all.find_subcommand_mut(name));
            let command = match command {
                Some(command) => command,
                None => &mut all,
            };
            error.remove(ContextKind::SuggestedArg);
            error.remove(ContextKind::Suggested);
            match answer(&unknown, command) {
                Some(Answer::Tip(tip)) => suggest(&mut error, tip),
                Some(Answer::Option(name)) => {
                    error.insert(ContextKind::SuggestedArg, ContextValue::String(name));
                }
                None => {}
            }
            // It has the option that clap suggests.
            let usage = ContextValue::StyledStr(command.render_usage());
            error.insert(ContextKind::Usage, usage);
        }
        ErrorKind::InvalidSubcommand => {
            let Some(ContextValue::String(unknown)) = error.get(ContextKind::InvalidSubcommand)
            else {
                return error;
            };
            let visible = all
                .get_subcommands()
                .filter(|command| !command.is_hide_set());
            let name = habits::command(unknown)
                .map(str::to_owned)
                .or_else(|| closest(unknown, visible.map(Command::get_name)));
            error.remove(ContextKind::Suggested);
            match name {
                Some(name) => {
                    let name = ContextValue::Strings(vec![name]);
                    error.insert(ContextKind::SuggestedSubcommand, name);
                }
                None => {
                    error.remove(ContextKind::SuggestedSubcommand);
                }
            }
        }
        _ => {}
    }
    error
}

/// What is said about an argument that does not exist.
enum Answer {
    /// This.
    Tip(String),
    /// A similar option exists.
    Option(String),
}

fn answer(unknown: &str, command: &Command) -> Option<Answer> {
    if let Some(rest) = unknown.strip_prefix('-')
        && rest.starts_with(|first: char| first.is_ascii_digit() || first == '.')
    {
        let tip = "no value is negative; where a limit can be left out, its value is 'none'";
        return Some(Answer::Tip(tip.to_owned()));
    }
    if unknown.starts_with('-') {
        let tip = habits::answer(unknown).map(|tip| Answer::Tip(tip.to_owned()));
        let similar = || closest(unknown.strip_prefix("--")?, suggestible(command));
        return tip.or_else(|| similar().map(|name| Answer::Option(format!("--{name}"))));
    }
    if let Some(what) = habits::address(unknown) {
        return Some(Answer::Tip(format!("'{unknown}' {what}")));
    }
    let names_guest = command
        .get_arguments()
        .any(|arg| arg.get_long() == Some("qmp"));
    names_guest.then(|| {
        let tip = "a guest is named by --domain NAME, or by --qmp PATH";
        Answer::Tip(tip.to_owned())
    })
}

/// The options of a command that may be suggested.
fn suggestible(command: &Command) -> impl Iterator<Item = &str> {
    let visible = command.get_arguments().filter(|arg| !arg.is_hide_set());
    visible
        .filter_map(clap::Arg::get_long)
        .filter(|name| !is_destructive(name))
}

/// The name that is most similar to `unknown`: a few letters differ, or it has `unknown` in it.
fn closest<'a>(unknown: &str, names: impl Iterator<Item = &'a str>) -> Option<String> {
    let letters = unknown.chars().count();
    let similar = names.filter_map(|name| {
        let distance = strsim::osa_distance(unknown, name);
        let is_part = letters >= 4 && name.contains(unknown);
        (distance <= 1 + letters / 5 || is_part).then_some((distance, name))
    });
    similar.min().map(|(_, name)| name.to_owned())
}

fn suggest(error: &mut Error, tip: String) {
    let tips = ContextValue::StyledStrs(vec![StyledStr::from(tip)]);
    error.insert(ContextKind::Suggested, tips);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(words: &str) -> String {
        let words = ["hikkoshi"].into_iter().chain(words.split_whitespace());
        parse(words.map(OsString::from)).unwrap_err().to_string()
    }

    const USAGE: &str = "Usage: hikkoshi migrate [OPTIONS] <--qmp <PATH>|--domain <NAME>|--resume[=<JOURNAL>]> \
         [ADDR]\n\nFor more information, try '--help'.\n";

    #[test]
    fn habits_of_other_tools_are_answered() {
        for (option, tip) in [
            ("--live", "the guest runs while it is moved, in each --mode"),
            (
                "--copy-storage-all",
                habits::answer("--with-local-disks").unwrap(),
            ),
            (
                "--parallel",
                "there are several connections by default; their number is --links",
            ),
        ] {
            assert_eq!(
                message(&format!("migrate --qmp /q h:1 {option}")),
                format!("error: unexpected argument '{option}' found\n\n  tip: {tip}\n\n{USAGE}")
            );
        }
        for (words, part) in [
            ("migrate --qmp /q h:1 --timeout 60", "--when-stalled"),
            ("migrate --qmp /q h:1 --timeout=60", "--when-stalled"),
            ("migrate --qmp /q h:1 --auto-converge", "--mode hybrid"),
            (
                "migrate --qmp /q h:1 --unsafe",
                "no option allows everything",
            ),
            (
                "migrate --qmp /q h:1 --online --with-local-disks",
                "in each --mode",
            ),
            ("migrate --qmp /q h:1 --block-migrate", "--copy-disks"),
            ("migrate web qemu+ssh://h2/system --live", "--ssh h2"),
            ("migrate --domain web qemu+ssh://h2/system", "--ssh h2"),
            (
                "migrate --domain web --ssh qemu+ssh://h2/system",
                "--ssh h2",
            ),
            ("migrate --domain web tcp:h2:4444", "write h2:4444"),
            ("migrate web h2:7000", "--domain NAME"),
            ("domjobinfo", "'status'"),
            ("migrate-setspeed web 100", "'set'"),
        ] {
            let message = message(words);
            assert!(message.contains(part), "{words}: {message}");
        }
    }

    #[test]
    fn a_similar_visible_option_is_suggested() {
        for (words, option) in [
            ("set --bandwith 3M", "--bandwidth"),
            ("migrate --qmp /q h:1 --stall-timout 5", "--stall-timeout"),
            ("migrate --qmp /q h:1 --copy", "--copy-disks"),
            ("receive --qmp /q --lisen h:1", "--listen"),
            ("migrat --qmp /q", "migrate"),
        ] {
            let message = message(words);
            assert!(
                message.contains(&format!("exists: '{option}'\n")),
                "{words}: {message}"
            );
        }
    }

    /// Neither in a tip nor in the usage.
    #[test]
    fn hidden_and_destructive_options_are_not_suggested() {
        let mut all = Args::command();
        all.build();
        for command in all.get_subcommands() {
            let name = command.get_name();
            if command.is_hide_set() || name == "help" {
                continue;
            }
            let longs = command.get_arguments().filter(|arg| {
                let long = arg.get_long().unwrap_or_default();
                arg.is_hide_set() || is_destructive(long)
            });
            let longs: Vec<&str> = longs.filter_map(clap::Arg::get_long).collect();
            let usage = command.clone().render_usage().to_string();
            for long in &longs {
                // With a letter less, or one more.
                for wrong in [&long[..long.len() - 1], &format!("{long}s")] {
                    let message = message(&format!("{name} --{wrong}"));
                    let of_others = message
                        .replace(&format!("'--{wrong}'"), "")
                        .replace(&usage, "");
                    let named = longs
                        .iter()
                        .find(|long| of_others.contains(&format!("--{long}")));
                    assert_eq!(named, None, "{message}");
                }
            }
            for wrong in ["", "--live", "--nothing-like-it", "--listen"] {
                let message = message(&format!("{name} {wrong} --unsafe"));
                let of_others = message.replace(&usage, "");
                let named = longs
                    .iter()
                    .find(|long| of_others.contains(&format!("--{long}")));
                assert_eq!(named, None, "{message}");
            }
        }
        for wrong in ["--drop", "--bitmaps", "--snapshots", "--shared"] {
            let message = message(&format!("migrate --qmp /q h:1 {wrong}"));
            assert!(!message.contains("exists:"), "{message}");
        }
        for wrong in ["genrate", "gaurd"] {
            assert!(!message(wrong).contains("tip"), "{}", message(wrong));
        }
    }

    /// What is not an option is never a value: no argument begins with a hyphen.
    #[test]
    fn two_hyphens_are_not_advised() {
        for words in ["cancel --forced", "migrate --qmp /q h:1 --xyz", "status -x"] {
            assert!(!message(words).contains("'-- "), "{}", message(words));
        }
    }

    /// Of an option that has no answer of its own.
    #[test]
    fn a_negative_value_is_answered() {
        for words in [
            "migrate --qmp /q h:1 --rounds -1",
            "migrate --qmp /q h:1 --links -.5",
        ] {
            let tip = message(words);
            assert!(tip.contains("no value is negative"), "{tip}");
            assert!(tip.contains("its value is 'none'"), "{tip}");
        }
        // These say so themselves.
        for words in [
            "migrate --qmp /q h:1 --bandwidth -1",
            "set web --max-downtime -.5",
        ] {
            assert!(message(words).contains("or none"), "{words}");
        }
    }

    #[test]
    fn what_is_missing_is_visible() {
        let message = message("receive --qmp /q");
        assert!(message.contains("--listen <ADDR>"), "{message}");
    }
}
