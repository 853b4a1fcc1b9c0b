//! How a guest's memory travels.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// How a guest's memory travels. A message has its position in this enum, so the
/// order must not change; other output has [its name](Self::name).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// All memory before the switchover.
    Precopy,
    /// All memory after the switchover.
    Postcopy,
    /// Rounds of pre-copy, then post-copy for the rest.
    Hybrid,
}

impl Mode {
    /// Its name on the command line and in JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Precopy => "precopy",
            Self::Postcopy => "postcopy",
            Self::Hybrid => "hybrid",
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Mode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        [Self::Precopy, Self::Postcopy, Self::Hybrid]
            .into_iter()
            .find(|mode| mode.name() == text)
            .ok_or_else(|| format!("unknown mode '{text}'; use precopy, postcopy or hybrid"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mode_is_parsed_from_its_name() {
        for mode in [Mode::Precopy, Mode::Postcopy, Mode::Hybrid] {
            assert_eq!(mode.name().parse::<Mode>().unwrap(), mode);
        }
        let error = "fast".parse::<Mode>().unwrap_err();
        assert_eq!(
            error,
            "unknown mode 'fast'; use precopy, postcopy or hybrid"
        );
    }
}
