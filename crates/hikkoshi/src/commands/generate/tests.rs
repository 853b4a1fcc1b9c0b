//! Each visible command is documented and completed; nothing hidden is.

use clap::CommandFactory;
use clap_complete::aot::{Shell, generate};

use super::{manual, visible};
use crate::args::Args;

/// A page without the escapes of roff.
fn text(page: &[u8]) -> String {
    String::from_utf8(page.to_vec()).unwrap().replace('\\', "")
}

fn hidden_options() -> Vec<String> {
    let whole = Args::command();
    let arguments = whole.get_subcommands().flat_map(|one| one.get_arguments());
    let hidden = arguments.filter(|one| one.is_hide_set());
    hidden
        .filter_map(|one| Some(format!("--{}", one.get_long()?)))
        .collect()
}

/// Whether `word` is in `text`, and not only as the beginning of a longer word.
fn has_word(text: &str, word: &str) -> bool {
    text.match_indices(word).any(|(at, _)| {
        let next = text[at + word.len()..].chars().next();
        next.is_none_or(|next| !next.is_ascii_alphanumeric() && next != '-')
    })
}

#[test]
fn each_visible_command_has_a_page_with_options_exit_statuses_and_see_also() {
    let pages = manual::pages().unwrap();
    let mut whole = Args::command();
    whole.build();
    let visible: Vec<_> = whole
        .get_subcommands()
        .filter(|one| !one.is_hide_set() && one.get_name() != "help")
        .collect();
    assert_eq!(
        pages.len(),
        visible.len() + 1,
        "one page a command, and hikkoshi(1)"
    );
    for command in visible {
        let name = command.get_name();
        let file = format!("hikkoshi-{name}.1");
        let (_, page) = pages.iter().find(|(other, _)| *other == file).unwrap();
        let page = text(page);
        for title in [
            ".SH NAME",
            ".SH SYNOPSIS",
            ".SH \"EXIT STATUS\"",
            ".SH \"SEE ALSO\"",
        ] {
            assert!(page.contains(title), "{title} of {name}:\n{page}");
        }
        assert!(page.contains("fB0fR"), "exit status 0 of {name}:\n{page}");
        assert!(page.contains("fBhikkoshifR(1),"), "{name}:\n{page}");
        for argument in command.get_arguments().filter(|one| !one.is_hide_set()) {
            if let Some(long) = argument.get_long() {
                assert!(page.contains(&format!("--{long}")), "--{long} of {name}");
            }
        }
    }
}

#[test]
fn exit_statuses_are_those_of_the_command() {
    let pages = manual::pages().unwrap();
    for (name, said) in [
        ("migrate", "still at the source"),
        ("receive", "still at the source"),
        ("invite", "The daemon refuses"),
        ("status", "refuses to be changed"),
        ("set", "refuses to be changed"),
        ("switch", "refuses to be changed"),
        ("cancel", "refuses to be changed"),
        ("check", "QEMU cannot be examined"),
    ] {
        let file = format!("hikkoshi-{name}.1");
        let (_, page) = pages.iter().find(|(other, _)| *other == file).unwrap();
        let page = text(page);
        let (_, statuses) = page.split_once(".SH \"EXIT STATUS\"").unwrap();
        assert!(statuses.contains(said), "{name}:\n{statuses}");
    }
    // They depend on the command.
    let (_, all) = pages.iter().find(|(name, _)| name == "hikkoshi.1").unwrap();
    assert!(!text(all).contains("EXIT STATUS"), "{}", text(all));
}

#[test]
fn hidden_options_and_commands_are_neither_documented_nor_completed() {
    let hidden = hidden_options();
    assert!(hidden.contains(&"--no-drain".to_owned()), "{hidden:?}");
    let mut texts: Vec<_> = manual::pages()
        .unwrap()
        .iter()
        .map(|(_, page)| text(page))
        .collect();
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        let mut script = Vec::new();
        generate(shell, &mut visible::command(), "hikkoshi", &mut script);
        let script = String::from_utf8(script).unwrap();
        assert!(script.contains("max-downtime"), "{shell}");
        assert!(!script.contains("guard"), "{shell}");
        texts.push(script);
    }
    for text in texts {
        for option in &hidden {
            assert!(!has_word(&text, option), "{option}:\n{text}");
            let fish = format!("-l {}", option.trim_start_matches('-'));
            assert!(!has_word(&text, &fish), "{fish}:\n{text}");
        }
    }
}
