//! What a `receive` that another hikkoshi has started prints on standard output.

use std::fmt;
use std::io::{self, BufRead};

use hikkoshi_link::tls::Invitation;

use crate::commands::bounded_lines::next_line;

/// The line by which a `receive` that resumes a migration says that it listens.
pub(super) const LISTENING: &str = "hikkoshi-listening";

/// The line by which it says that another process resumes the migration.
pub(super) const BUSY: &str = "hikkoshi-busy";

/// How much a login shell may print before, in lines.
const MAX_OTHER_LINES: usize = 100;

/// The answer of a `receive`.
#[derive(PartialEq, Eq)]
pub(super) enum Answer {
    /// Its invitation, which is not parsed yet.
    Invitation(String),
    /// It waits for the source of the migration that it resumes.
    Listening,
    /// It ends: another process has resumed the migration.
    Busy,
}

/// Without the secret.
impl fmt::Debug for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Invitation(_) => "Invitation",
            Self::Listening => "Listening",
            Self::Busy => "Busy",
        })
    }
}

impl Answer {
    /// Reads until the answer, or the end: `None`. Passes other lines, such as those of a login
    /// shell, to `other`.
    pub(super) fn read(
        output: &mut impl BufRead,
        mut other: impl FnMut(&str),
    ) -> io::Result<Option<Self>> {
        for _ in 0..MAX_OTHER_LINES {
            let Some(line) = next_line(output)? else {
                return Ok(None);
            };
            // A shell may have printed something before, without ending its line.
            if let Some(at) = line.find(Invitation::SCHEME) {
                return Ok(Some(Self::Invitation(line[at..].trim().to_owned())));
            }
            if line.trim_end().ends_with(LISTENING) {
                return Ok(Some(Self::Listening));
            }
            if line.trim_end().ends_with(BUSY) {
                return Ok(Some(Self::Busy));
            }
            other(&line);
        }
        Err(io::Error::other(
            "it prints other text instead of an invitation (does a login shell print it?)",
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> (io::Result<Option<Answer>>, Vec<String>) {
        let mut others = Vec::new();
        let answer = Answer::read(&mut text.as_bytes(), |line| others.push(line.to_owned()));
        (answer, others)
    }

    #[test]
    fn text_of_a_login_shell_is_not_the_answer() {
        let (answer, others) = read("welcome\n\u{1b}[0mhikkoshi1:a.b@h:1\r\nmore\n");
        let expected = Answer::Invitation("hikkoshi1:a.b@h:1".to_owned());
        assert_eq!(answer.unwrap(), Some(expected));
        assert_eq!(others, ["welcome"]);
        let (answer, _) = read("hikkoshi-listening\n");
        assert_eq!(answer.unwrap(), Some(Answer::Listening));
        let (answer, _) = read("hikkoshi-busy\r\n");
        assert_eq!(answer.unwrap(), Some(Answer::Busy));
    }

    #[test]
    fn the_secret_is_not_shown() {
        let (answer, others) = read("hikkoshi1:FINGER.SECRET@h:1");
        assert!(!format!("{answer:?}{others:?}").contains("SECRET"));
    }

    #[test]
    fn endless_text_ends() {
        assert_eq!(read("x\n").0.unwrap(), None);
        assert!(read(&"x\n".repeat(1000)).0.is_err());
        assert!(read(&"x".repeat(1 << 20)).0.is_err());
    }
}
