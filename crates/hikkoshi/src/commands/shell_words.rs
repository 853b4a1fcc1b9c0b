//! Words as a POSIX shell takes them.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

/// Characters that have no meaning for a shell anywhere in a word.
fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"/._-+:@".contains(&byte)
}

/// One word. The shell makes the same bytes of it, whatever they are.
pub(super) fn quoted(word: impl AsRef<OsStr>) -> OsString {
    let word = word.as_ref();
    let bytes = word.as_bytes();
    if !bytes.is_empty() && bytes.iter().copied().all(is_plain) {
        return word.to_owned();
    }
    let mut quoted = vec![b'\''];
    for &byte in bytes {
        match byte {
            b'\'' => quoted.extend_from_slice(b"'\\''"),
            byte => quoted.push(byte),
        }
    }
    quoted.push(b'\'');
    OsString::from_vec(quoted)
}

/// A command line of these words.
pub(super) fn joined<W: AsRef<OsStr>>(words: impl IntoIterator<Item = W>) -> OsString {
    let quoted: Vec<_> = words.into_iter().map(quoted).collect();
    quoted.join(OsStr::new(" "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn words_are_quoted_if_the_shell_needs_it() {
        for (word, expected) in [
            ("/run/hikkoshi/a.json", "/run/hikkoshi/a.json"),
            ("/a b", "'/a b'"),
            ("/it's", "'/it'\\''s'"),
            ("", "''"),
            ("--set=disk", "'--set=disk'"),
        ] {
            assert_eq!(quoted(word), expected);
        }
    }

    #[test]
    fn a_shell_makes_the_same_words_of_them() {
        let words: Vec<OsString> = [
            &b"a"[..],
            b"",
            b"it's \"x\"",
            b"$(touch /x) `y` \\ ~ * # ; & | < > ! {a,b}",
            b"line\nand\ttab",
            b"\xff\xfe not UTF-8",
            b"-n",
        ]
        .into_iter()
        .map(|bytes| OsString::from_vec(bytes.to_vec()))
        .collect();
        let line = joined([&[OsString::from("printf"), "%s\\0".into()], &words[..]].concat());
        let output = Command::new("sh").arg("-c").arg(line).output().unwrap();
        let mut expected = words.join(OsStr::new("\0")).into_vec();
        expected.push(0);
        assert_eq!(output.stdout, expected);
    }
}
