//! Colours, on a terminal.

/// Bold, red; and as it was (SGR).
const ALARM: &str = "\x1b[1;31m";
const PLAIN: &str = "\x1b[0m";

/// Whether the user wants them (<https://no-color.org>).
pub(crate) fn is_wanted() -> bool {
    std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// A text that must not be overlooked.
pub(crate) fn alarm(text: &str) -> String {
    format!("{ALARM}{text}{PLAIN}")
}
