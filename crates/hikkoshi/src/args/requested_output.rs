//! How to report that a command line cannot be parsed.
//!
//! A program with a mistake in one option may have asked in others for a report as JSON. Those are
//! looked for without parsing the rest.

use std::ffi::OsString;
use std::path::PathBuf;

/// The output that a command line asks for.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct RequestedOutput {
    /// `--progress json`.
    pub json_progress: bool,
    /// `--json FILE`.
    pub json_file: Option<PathBuf>,
}

impl RequestedOutput {
    /// Looks for the two options in `words`.
    pub(crate) fn find(words: impl IntoIterator<Item = OsString>) -> Self {
        let mut found = Self::default();
        let mut words = words.into_iter().peekable();
        let program = words.next();
        // Their `--json` has no file.
        if words
            .peek()
            .is_some_and(|command| command == "status" || command == "history")
        {
            return found;
        }
        let mut words = program.into_iter().chain(words);
        while let Some(word) = words.next() {
            // These options are ASCII.
            match word.to_str().unwrap_or_default() {
                "--" => break,
                "--progress=json" => found.json_progress = true,
                "--progress" => {
                    found.json_progress = words.next().is_some_and(|format| format == "json");
                }
                "--json" => found.json_file = words.next().map(PathBuf::from),
                word => {
                    if let Some(file) = word.strip_prefix("--json=") {
                        found.json_file = Some(file.into());
                    }
                }
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_spellings_are_found() {
        let find =
            |words: &str| RequestedOutput::find(words.split_whitespace().map(OsString::from));
        let both = RequestedOutput {
            json_progress: true,
            json_file: Some("/f".into()),
        };
        assert_eq!(find("migrate --progress json --json /f --what"), both);
        assert_eq!(find("migrate --json=/f x --progress=json"), both);
        for neither in [
            "",
            "--progress",
            "--json",
            "--progress none",
            "-- --json=/f",
            "hikkoshi status --json /f",
            "hikkoshi history --json /f",
        ] {
            assert_eq!(find(neither), RequestedOutput::default(), "{neither}");
        }
    }
}
