//! Words for a shell (POSIX, section 2.2).

use std::borrow::Cow;

/// The word, quoted if a shell would change it.
pub(super) fn word(word: &str) -> Cow<'_, str> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:,=+@%".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.into();
    }
    // Nothing is special between single quotes, except their end.
    format!("'{}'", word.replace('\'', r"'\''")).into()
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_shell_reads_each_word_as_it_was() {
        for text in [
            "",
            "plain-1.0,a=b:/c_d+e@f%g",
            "two words",
            "it's",
            "$HOME `id` \"x\" \\ !",
            "a\nb\tc",
            "~root",
            "#comment",
            "*?[a]{b}",
            "日本",
            "'",
        ] {
            let script = format!("printf %s {}", word(text));
            let done = Command::new("sh").args(["-c", &script]).output().unwrap();
            assert_eq!(String::from_utf8(done.stdout).unwrap(), text);
        }
        assert_eq!(word("-m"), "-m");
    }
}
