//! The command line without what is hidden. The generator of completions would offer hidden
//! commands and options as well.

use std::collections::HashSet;

use clap::{ArgGroup, Command, CommandFactory};

use crate::args::Args;

/// The visible commands with their visible options.
pub(super) fn command() -> Command {
    let whole = Args::command();
    let commands = whole.get_subcommands().filter(|one| !one.is_hide_set());
    Command::new("hikkoshi")
        .version(env!("CARGO_PKG_VERSION"))
        .about(whole.get_about().cloned().unwrap_or_default())
        .subcommand_required(true)
        .disable_help_subcommand(true)
        .subcommands(commands.map(without_hidden))
}

fn without_hidden(command: &Command) -> Command {
    let arguments = || command.get_arguments().filter(|one| !one.is_hide_set());
    let known: HashSet<_> = arguments()
        .map(clap::Arg::get_id)
        .chain(command.get_groups().map(ArgGroup::get_id))
        .collect();
    let groups = command.get_groups().map(|group| {
        let members = group.get_args().filter(|id| known.contains(id)).cloned();
        // `is_multiple` needs a group that can be changed, for no reason that matters here.
        let multiple = group.clone().is_multiple();
        ArgGroup::new(group.get_id().clone())
            .args(members)
            .required(group.is_required_set())
            .multiple(multiple)
    });
    // Clap has only static names, unless its feature `string` is on. The process ends soon.
    let name: &'static str = command.get_name().to_owned().leak();
    Command::new(name)
        .about(command.get_about().cloned().unwrap_or_default())
        .args(arguments().cloned())
        .groups(groups)
}
