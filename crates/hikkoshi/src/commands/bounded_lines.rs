//! Lines from another host.

use std::io::{self, BufRead, Read};

/// Longer lines are cut into pieces of this many bytes.
const MAX_LINE: u64 = 4096;

/// The next line without its end; `None` at the end of the input. What is not UTF-8 is replaced.
pub(super) fn next_line(input: &mut impl BufRead) -> io::Result<Option<String>> {
    let mut line = Vec::new();
    if input.by_ref().take(MAX_LINE).read_until(b'\n', &mut line)? == 0 {
        return Ok(None);
    }
    let text = String::from_utf8_lossy(&line);
    Ok(Some(text.trim_end_matches(['\n', '\r']).to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_bounded() {
        let long = "x".repeat(10_000);
        let text = format!("a\r\n\n{long}\nend\u{fffd}");
        let mut input = text.as_bytes();
        let mut lines = Vec::new();
        while let Some(line) = next_line(&mut input).unwrap() {
            lines.push(line);
        }
        assert_eq!(lines[..2], ["a", ""]);
        assert_eq!(lines[2..5].concat(), long);
        assert!(lines.iter().all(|line| line.len() <= 4096));
        assert_eq!(lines[5..], ["end\u{fffd}"]);
    }
}
