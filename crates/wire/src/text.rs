//! What a terminal, or a log, shows as text, of words that others have chosen: a
//! peer, QEMU, a process that has named itself.

use std::borrow::Cow;

/// Whether a terminal or a log takes `character` for text: not control characters
/// (escape sequences begin with one), line and paragraph separators, and those
/// that change or hide the direction of what follows (Unicode's `Bidi_Control`).
pub fn is_text(character: char) -> bool {
    let directs = matches!(
        character,
        '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
    );
    !directs && !character.is_control() && !matches!(character, '\u{2028}' | '\u{2029}')
}

/// `text` on one line: line ends and tabs become blanks, other characters that are
/// no text question marks.
pub fn one_line(text: &str) -> Cow<'_, str> {
    shown(text, |character| match character {
        '\n' | '\r' | '\t' => ' ',
        _ => '?',
    })
}

/// The same, but for line ends, which stay.
pub fn lines(text: &str) -> Cow<'_, str> {
    shown(text, |character| match character {
        '\n' => '\n',
        '\r' | '\t' => ' ',
        _ => '?',
    })
}

/// `text` in at most `bytes` bytes: its end is cut off where it is longer, which an
/// ellipsis shows.
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

/// `instead` of everything that is no text.
fn shown(text: &str, instead: impl Fn(char) -> char) -> Cow<'_, str> {
    if text.chars().all(is_text) {
        return text.into();
    }
    let shown = |character| {
        if is_text(character) {
            character
        } else {
            instead(character)
        }
    };
    text.chars().map(shown).collect()
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
    fn only_text_is_left() {
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
