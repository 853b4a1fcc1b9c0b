//! Errors as text: the message, and those of its sources.

use std::error::Error;

/// The message of `error` and of its sources, joined by colons.
///
/// A message does not repeat its source. Where one does, such as an `io::Error` that was made of
/// text, the source is not printed a second time.
pub(crate) fn text(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        let message = error.to_string();
        if !text.contains(&message) {
            text.push_str(": ");
            text.push_str(&message);
        }
        source = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;

    #[derive(Debug, thiserror::Error)]
    #[error("reading the list")]
    struct Reading(#[from] io::Error);

    #[derive(Debug, thiserror::Error)]
    #[error("moving: {0}")]
    struct Moving(#[from] Reading);

    #[test]
    fn each_message_is_printed_once() {
        let reading = Reading(io::Error::other("no such disk"));
        assert_eq!(text(&reading), "reading the list: no such disk");
        let moving = Moving(reading);
        assert_eq!(text(&moving), "moving: reading the list: no such disk");
    }
}
