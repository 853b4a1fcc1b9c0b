//! What a message that the protocol does not allow is called in an error.

use std::fmt::{self, Write};

/// The most characters of something that has no name.
const MAX_NAME: usize = 200;

/// The name of a message, or the text of something in one. Of a message it is the name only: the
/// fields say nothing to a person.
pub fn message_name(message: &impl fmt::Debug) -> String {
    let mut name = Name::default();
    // An error ends the formatting: a message can be large.
    let _ = write!(name, "{message:?}");
    name.0
}

/// The beginning of a value's text: of a structure its name.
#[derive(Default)]
struct Name(String);

impl Write for Name {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for character in text.chars() {
            // `Name { fields }`
            let ends = self.0.starts_with(char::is_alphabetic) && character == ' ';
            if ends || self.0.len() >= MAX_NAME {
                return Err(fmt::Error);
            }
            self.0.push(character);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{SourceStage, ToDestination};

    #[test]
    fn a_message_is_called_by_its_name() {
        let stage = SourceStage::HandedOver;
        let message = ToDestination::ResumeRequest { stage };
        assert_eq!(message_name(&message), "ResumeRequest");
        assert_eq!(message_name(&ToDestination::Goodbye), "Goodbye");
        let text = "3 pages owed (here: 2)";
        assert_eq!(message_name(&text), format!("{text:?}"));
        assert_eq!(message_name(&[4096, 4096]), "[4096, 4096]");
        assert_eq!(message_name(&Some(8..24)), "Some(8..24)");
        assert_eq!(message_name(&"x".repeat(1 << 20)).len(), MAX_NAME);
    }
}
