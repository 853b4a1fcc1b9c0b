//! Splits received bytes into lines of bounded length.

/// The longest accepted line, in bytes. The longest real answers are
/// `info mtree` and `qom-list`, well under 1 MiB for hundreds of devices.
pub(crate) const MAX_LINE: usize = 16 << 20;

/// A line was longer than [`MAX_LINE`].
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TooLong;

/// Collects bytes and returns lines.
#[derive(Debug, Default)]
pub(crate) struct Lines {
    buffer: Vec<u8>,
    /// Bytes at the front of `buffer` that contain no line end.
    searched: usize,
}

impl Lines {
    /// Adds received bytes.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// The next complete line without its line end, if there is one. Skips blank
    /// lines.
    pub(crate) fn next_line(&mut self) -> Result<Option<Vec<u8>>, TooLong> {
        loop {
            let rest = self.buffer.get(self.searched..).unwrap_or_default();
            let Some(at) = rest.iter().position(|byte| *byte == b'\n') else {
                self.searched = self.buffer.len();
                return if self.buffer.len() > MAX_LINE {
                    Err(TooLong)
                } else {
                    Ok(None)
                };
            };
            let end = self.searched + at;
            if end > MAX_LINE {
                return Err(TooLong);
            }
            let tail = self.buffer.split_off(end + 1);
            let mut line = std::mem::replace(&mut self.buffer, tail);
            self.searched = 0;
            while line.last().is_some_and(u8::is_ascii_whitespace) {
                line.pop();
            }
            if !line.is_empty() {
                return Ok(Some(line));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_do_not_depend_on_how_the_bytes_arrive() {
        let mut lines = Lines::default();
        let mut seen = Vec::new();
        for byte in b"one\r\n\n\r\ntwo\nthr" {
            lines.push(&[*byte]);
            while let Some(line) = lines.next_line().unwrap() {
                seen.push(String::from_utf8(line).unwrap());
            }
        }
        assert_eq!(seen, ["one", "two"]);
        lines.push(b"ee\n");
        assert_eq!(lines.next_line().unwrap().unwrap(), b"three");
        assert_eq!(lines.next_line(), Ok(None));
    }

    #[test]
    fn an_endless_line_is_refused_early() {
        let mut lines = Lines::default();
        let piece = vec![b'x'; 1 << 20];
        let mut pushed = 0;
        let refused = loop {
            lines.push(&piece);
            pushed += piece.len();
            match lines.next_line() {
                Ok(None) => assert!(pushed <= MAX_LINE),
                other => break other,
            }
        };
        assert_eq!(refused, Err(TooLong));
        assert_eq!(pushed, MAX_LINE + piece.len());
    }
}
