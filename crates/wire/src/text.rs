//! Text from outside (a peer, QEMU, the name of a process), reduced to characters
//! that a terminal or a log displays and does not interpret.

use std::borrow::Cow;

/// Returns whether a terminal or a log displays `character` as text. Characters that change the
/// direction of the text that follows are Unicode's `Bidi_Control`.
pub(crate) fn is_text(character: char) -> bool {
    let directs = matches!(
        character,
        '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
    );
    !directs && !character.is_control() && !matches!(character, '\u{2028}' | '\u{2029}')
}

/// Returns `text` on one line: line ends and tabs become spaces, and so that a terminal or a log
/// displays all of it as text, control characters (escape sequences begin with one), line and
/// paragraph separators, and characters that change the direction of the text that follows become
/// question marks.
pub fn one_line(text: &str) -> Cow<'_, str> {
    replace(text, |character| match character {
        '\n' | '\r' | '\t' => ' ',
        _ => '?',
    })
}

/// Returns `text` as [`one_line`] does, but keeps its line ends.
pub fn lines(text: &str) -> Cow<'_, str> {
    replace(text, |character| match character {
        '\n' => '\n',
        '\r' | '\t' => ' ',
        _ => '?',
    })
}

/// Returns `text` in at most `bytes` bytes. A longer text is cut and ends with an
/// ellipsis.
pub fn at_most(text: &str, bytes: usize) -> Cow<'_, str> {
    const CUT: &str = " ...";
    if text.len() <= bytes {
        return text.into();
    }
    let mut end = bytes.saturating_sub(CUT.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    let (kept, _) = text.split_at(end);
    format!("{kept}{CUT}").into()
}

/// Replaces each character that is not text by what `with` returns for it.
fn replace(text: &str, with: impl Fn(char) -> char) -> Cow<'_, str> {
    if text.chars().all(is_text) {
        return text.into();
    }
    let replaced = |character| {
        if is_text(character) {
            character
        } else {
            with(character)
        }
    };
    text.chars().map(replaced).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_text_is_cut_between_two_characters() {
        assert_eq!(at_most("näher", 6), "näher");
        assert_eq!(at_most("näher und näher", 8), "näh ...");
        assert_eq!(at_most("nä und", 6), "n ...");
    }

    #[test]
    fn characters_that_are_not_text_are_replaced() {
        for plain in ["", "näher, 引っ越し", "a\u{300}"] {
            assert_eq!(one_line(plain), plain);
        }
        let odd = "a\tb\r\nc\x1b[31md\x07\u{9b}2J\u{202e}e\u{2028}\x7f";
        assert_eq!(one_line(odd), "a b  c?[31md??2J?e??");
        assert_eq!(lines(odd), "a b \nc?[31md??2J?e??");
        assert!(matches!(lines("x"), Cow::Borrowed("x")));
        for (at, character) in (0..=u32::from(char::MAX))
            .filter_map(char::from_u32)
            .enumerate()
        {
            let shown = one_line(&character.to_string()).into_owned();
            assert!(shown.chars().all(is_text), "{at}: {shown:?}");
        }
    }
}
