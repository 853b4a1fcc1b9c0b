//! `--mode`.

use hikkoshi_engine::Mode;

/// What `--mode` of `migrate` requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RequestedMode {
    /// The mode that suits the guest and the line, by measurement.
    Auto,
    /// This mode.
    Fixed(Mode),
}

impl RequestedMode {
    /// The mode, if it is known.
    pub(crate) fn fixed(self) -> Option<Mode> {
        match self {
            Self::Auto => None,
            Self::Fixed(mode) => Some(mode),
        }
    }
}

/// Reads a mode by its name.
pub(super) fn parse(text: &str) -> Result<Mode, String> {
    text.parse()
}

/// Reads a mode by its name, or `auto`.
pub(super) fn parse_requested(text: &str) -> Result<RequestedMode, String> {
    match text {
        "auto" => Ok(RequestedMode::Auto),
        other => match parse(other) {
            Ok(mode) => Ok(RequestedMode::Fixed(mode)),
            Err(error) => Err(format!("{error}, or auto")),
        },
    }
}
