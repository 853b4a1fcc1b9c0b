//! A command line for a destination, as options, and as text for a shell.

use super::quote;
use crate::process::options::Opt;

/// A command line for a destination.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DestinationLine {
    pub(super) program: String,
    pub(super) options: Vec<Opt>,
    /// What has to be adapted or is not known, for people.
    pub notes: Vec<String>,
}

impl DestinationLine {
    /// For a shell: comments, then the command, an option a line.
    pub fn for_shell(&self) -> String {
        let mut text = String::new();
        for note in &self.notes {
            // A line break would end the comment.
            let note: String = note.chars().filter(|c| !c.is_control()).collect();
            text.push_str(&format!("# {note}\n"));
        }
        text.push_str(&quote::word(&self.program));
        for option in &self.options {
            text.push_str(" \\\n ");
            for word in option.words() {
                text.push(' ');
                text.push_str(&quote::word(word));
            }
        }
        text.push('\n');
        text
    }

    pub(super) fn note(&mut self, text: impl Into<String>) {
        self.notes.push(text.into());
    }
}
