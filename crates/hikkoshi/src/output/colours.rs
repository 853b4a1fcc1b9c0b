//! Colours on a terminal that has them, unless `NO_COLOR` is set.
//!
//! Text is coloured after it was sanitised ([`streams`](super::streams)): the escape sequences are
//! the only ones that are written.

use std::borrow::Cow;
use std::io;

use anstream::{AutoStream, ColorChoice};
use anstyle::{AnsiColor, Style};

/// What a line is about.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Colour {
    /// Nothing in particular.
    #[default]
    Plain,
    /// Headings.
    Heading,
    /// Success.
    Good,
    /// A failure, or what must not stay as it is: an outage, an engine that was killed.
    Alarm,
    /// What is to be done next.
    Next,
}

impl Colour {
    const fn style(self) -> Style {
        let bold = Style::new().bold();
        match self {
            Self::Plain => Style::new(),
            Self::Heading => bold,
            Self::Good => bold.fg_color(Some(anstyle::Color::Ansi(AnsiColor::Green))),
            Self::Alarm => bold.fg_color(Some(anstyle::Color::Ansi(AnsiColor::Red))),
            Self::Next => bold.fg_color(Some(anstyle::Color::Ansi(AnsiColor::Yellow))),
        }
    }

    /// The text in this colour, if colours are `shown`. It has no line end.
    pub(super) fn paint(self, text: &str, shown: bool) -> Cow<'_, str> {
        if !shown || self == Self::Plain {
            return text.into();
        }
        let style = self.style();
        format!("{style}{text}{style:#}").into()
    }
}

/// Whether the user wants them (<https://no-color.org>), on a terminal.
pub(super) fn are_wanted() -> bool {
    std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// Whether standard output shows colours.
pub(super) fn on_stdout() -> bool {
    AutoStream::choice(&io::stdout()) != ColorChoice::Never
}

/// Whether standard error shows colours.
pub(super) fn on_stderr() -> bool {
    AutoStream::choice(&io::stderr()) != ColorChoice::Never
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_colour_ends_with_its_text() {
        assert_eq!(
            Colour::Alarm.paint("lost", true),
            "\u{1b}[1m\u{1b}[31mlost\u{1b}[0m"
        );
        assert_eq!(Colour::Alarm.paint("lost", false), "lost");
        assert_eq!(Colour::Plain.paint("lost", true), "lost");
    }
}
