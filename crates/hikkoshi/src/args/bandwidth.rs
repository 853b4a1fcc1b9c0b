//! `--bandwidth`.

use std::str::FromStr;

use super::bytes;

/// A limit of background traffic, or none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Bandwidth {
    /// Bytes a second.
    pub limit: Option<u64>,
}

impl FromStr for Bandwidth {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let limit = match text {
            "none" => None,
            other => {
                let limit = bytes::parse(other);
                Some(limit.map_err(|error| format!("{error}; or none, for no limit"))?)
            }
        };
        Ok(Self { limit })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Args as CommandLine;
    use clap::Parser;

    #[test]
    fn a_limit_has_a_unit_or_is_none() {
        for (text, limit) in [("50MB", Some(50_000_000)), ("none", None)] {
            assert_eq!(text.parse(), Ok(Bandwidth { limit }));
        }
        for (text, why) in [
            (
                "100",
                "'100' has no unit; write 100MiB or 100MB (bytes), or 100Mbit (bits), or with K, G \
                 or T; or none, for no limit",
            ),
            (
                "0",
                "'0' is less than a byte; write a number with a unit, such as 50MB, 50MiB, 1.5G or \
                 400Mbit; or none, for no limit",
            ),
            (
                "-1",
                "'-1' is not a number of bytes; write a number with a unit, such as 50MB, 50MiB, \
                 1.5G or 400Mbit; or none, for no limit",
            ),
        ] {
            assert_eq!(text.parse::<Bandwidth>(), Err(why.to_owned()));
        }
    }

    /// All of the message, for each command: clap's tip on `--` would make it an address.
    #[test]
    fn a_negative_limit_is_refused_as_one() {
        for command in ["migrate --qmp /q h:1", "estimate --qmp /q", "set"] {
            for text in ["-1", "-1M"] {
                let words = ["hikkoshi"].into_iter().chain(command.split(' '));
                let words = words.chain(["--bandwidth", text]);
                let error = CommandLine::try_parse_from(words).unwrap_err().to_string();
                let why = text.parse::<Bandwidth>().unwrap_err();
                assert_eq!(
                    error,
                    format!(
                        "error: invalid value '{text}' for '--bandwidth <RATE>': {why}\n\nFor more \
                         information, try '--help'.\n"
                    )
                );
            }
        }
    }
}
