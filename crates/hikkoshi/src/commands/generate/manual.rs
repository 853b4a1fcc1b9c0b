//! The manual pages: `hikkoshi(1)`, and one for each command.

use std::io::{self, Write};
use std::path::Path;

use clap::Command;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};

use super::visible;
use crate::args::AFTER_HELP;

/// Writes all pages into `folder`.
pub(super) fn write(folder: &Path) -> io::Result<()> {
    for (name, page) in pages()? {
        std::fs::write(folder.join(name), page)?;
    }
    Ok(())
}

/// The pages by the names of their files.
pub(super) fn pages() -> io::Result<Vec<(String, Vec<u8>)>> {
    let mut whole = visible::command();
    whole.build();
    let names: Vec<_> = whole
        .get_subcommands()
        .map(|one| format!("hikkoshi-{}", one.get_name()))
        .collect();
    let mut pages = vec![("hikkoshi.1".to_owned(), page(&whole, None, &names)?)];
    for command in whole.get_subcommands() {
        let name = command.get_name();
        pages.push((
            format!("hikkoshi-{name}.1"),
            page(command, Some(name), &names)?,
        ));
    }
    Ok(pages)
}

/// One page; `name` is that of the command, if it is not the page about all of them.
fn page(command: &Command, name: Option<&str>, others: &[String]) -> io::Result<Vec<u8>> {
    let mut page = Vec::new();
    let man = Man::new(command.clone())
        .source(concat!("hikkoshi ", env!("CARGO_PKG_VERSION")))
        .manual("hikkoshi");
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    if name.is_none() {
        man.render_subcommands_section(&mut page)?;
    }
    let mut roff = Roff::new();
    if let Some(name) = name {
        table(&mut roff, "EXIT STATUS", exit_heading(name));
        // One that does something else with an option.
        let begin = format!("Exit status of {name} --");
        if let Some(other) = AFTER_HELP.lines().find(|line| line.starts_with(&begin)) {
            let title = other.trim_end_matches(':').to_uppercase();
            table(&mut roff, &title, other);
        }
    }
    table(&mut roff, "ENVIRONMENT", "Environment:");
    see_also(&mut roff, name, others);
    roff.to_writer(&mut page)?;
    page.flush()?;
    Ok(page)
}

/// The heading, in the help, of the exit statuses of a command, which may be one of several there.
fn exit_heading(name: &str) -> &'static str {
    let is_own = |line: &&str| {
        let commands = line
            .strip_prefix("Exit status of ")
            .and_then(|rest| rest.strip_suffix(':'));
        commands.is_some_and(|commands| {
            let mut commands = commands.split(", ").flat_map(|some| some.split(" and "));
            commands.any(|command| command.trim_start_matches("of ") == name)
        })
    };
    let own = AFTER_HELP.lines().find(is_own);
    own.unwrap_or("Exit status:")
}

/// A section of the help as a section of the page: lines of a term, two spaces and a text, which
/// indented lines continue. Without a heading there is no section.
fn table(roff: &mut Roff, title: &str, heading: &str) {
    let mut lines = AFTER_HELP.lines().skip_while(|line| *line != heading);
    if lines.next().is_none() {
        return;
    }
    roff.control("SH", [title]);
    for line in lines.take_while(|line| !line.is_empty()) {
        let line = line.strip_prefix("  ").unwrap_or(line);
        match line.split_once("  ") {
            Some((term, text)) if !term.is_empty() => {
                roff.control("TP", []);
                roff.text([bold(term)]);
                roff.text([roman(text.trim())]);
            }
            _ => {
                roff.text([roman(line.trim())]);
            }
        }
    }
}

fn see_also(roff: &mut Roff, name: Option<&str>, others: &[String]) {
    roff.control("SH", ["SEE ALSO"]);
    let own = name.map(|name| format!("hikkoshi-{name}"));
    let all = name.map(|_| "hikkoshi").into_iter();
    let others = others.iter().filter(|other| Some(*other) != own.as_ref());
    let names: Vec<_> = all.chain(others.map(String::as_str)).collect();
    for (at, name) in names.iter().enumerate() {
        let end = if at + 1 == names.len() { "(1)" } else { "(1)," };
        roff.text([bold(*name), roman(end)]);
    }
    roff.control("PP", []);
    roff.text([roman(
        "The documents, in share/doc/hikkoshi of the installation.",
    )]);
}
