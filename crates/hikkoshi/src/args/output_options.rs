//! What a command line asks for that cannot be parsed as a whole.
//!
//! A program that made a mistake in one option has said in others how it wants to
//! hear about that.

use std::ffi::OsString;
use std::path::PathBuf;

/// How to report that a command line cannot be used.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Asked {
    /// `--progress json`.
    pub progress: bool,
    /// `--json FILE`.
    pub file: Option<PathBuf>,
}

impl Asked {
    /// Looks for the two options in `words`.
    pub fn by(words: impl IntoIterator<Item = OsString>) -> Self {
        let mut asked = Self::default();
        let mut words = words.into_iter();
        while let Some(word) = words.next() {
            // What is no text is none of these options.
            match word.to_str().unwrap_or_default() {
                "--" => break,
                "--progress=json" => asked.progress = true,
                "--progress" => asked.progress = words.next().is_some_and(|kind| kind == "json"),
                "--json" => asked.file = words.next().map(PathBuf::from),
                word => {
                    if let Some(file) = word.strip_prefix("--json=") {
                        asked.file = Some(file.into());
                    }
                }
            }
        }
        asked
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_spellings_are_found() {
        let asked = |words: &str| Asked::by(words.split_whitespace().map(OsString::from));
        let both = Asked {
            progress: true,
            file: Some("/f".into()),
        };
        assert_eq!(asked("migrate --progress json --json /f --what"), both);
        assert_eq!(asked("migrate --json=/f x --progress=json"), both);
        for neither in [
            "",
            "--progress",
            "--json",
            "--progress none",
            "-- --json=/f",
        ] {
            assert_eq!(asked(neither), Asked::default(), "{neither}");
        }
    }
}
