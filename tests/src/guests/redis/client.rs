//! A connection to redis: RESP, version 2 of its protocol.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;

/// The longest text that is accepted; the values of the tests are shorter.
const MAX_LENGTH: usize = 64 << 10;

/// An answer.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum Reply {
    /// `+OK`, for example.
    Status(String),
    /// An error of redis.
    Error(String),
    /// A number.
    Integer(i64),
    /// A value, or that there is none.
    Bulk(Option<Vec<u8>>),
}

/// A connection to redis.
#[derive(Debug)]
pub(super) struct Client {
    stream: TcpStream,
    replies: BufReader<TcpStream>,
}

impl Client {
    /// Uses a connected socket.
    pub(super) fn new(stream: TcpStream) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(crate::LONG))?;
        let replies = BufReader::new(stream.try_clone()?);
        Ok(Self { stream, replies })
    }

    /// Sends a command, and waits for its answer.
    pub(super) fn command(&mut self, words: &[&[u8]]) -> io::Result<Reply> {
        self.stream.write_all(&encode(words))?;
        read_reply(&mut self.replies)
    }
}

fn encode(words: &[&[u8]]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        bytes.extend(format!("${}\r\n", word.len()).bytes());
        bytes.extend(*word);
        bytes.extend(b"\r\n");
    }
    bytes
}

fn read_reply(from: &mut impl BufRead) -> io::Result<Reply> {
    let bad = |line: &str| io::Error::other(format!("not an answer of redis: {line:?}"));
    let mut line = Vec::new();
    from.take(MAX_LENGTH as u64).read_until(b'\n', &mut line)?;
    let line = String::from_utf8_lossy(&line).into_owned();
    let text = line.strip_suffix("\r\n").ok_or_else(|| bad(&line))?;
    let (kind, text) = text.split_at_checked(1).ok_or_else(|| bad(&line))?;
    match kind {
        "+" => Ok(Reply::Status(text.to_owned())),
        "-" => Ok(Reply::Error(text.to_owned())),
        ":" => text.parse().map(Reply::Integer).map_err(|_| bad(&line)),
        "$" if text == "-1" => Ok(Reply::Bulk(None)),
        "$" => {
            let length: usize = text.parse().map_err(|_| bad(&line))?;
            if length > MAX_LENGTH {
                return Err(bad(&line));
            }
            let mut bytes = vec![0; length + 2];
            from.read_exact(&mut bytes)?;
            match bytes.split_off(length).as_slice() {
                b"\r\n" => Ok(Reply::Bulk(Some(bytes))),
                _ => Err(bad(&line)),
            }
        }
        _ => Err(bad(&line)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_encoded_and_answers_parsed() {
        assert_eq!(encode(&[b"GET", b"a"]), b"*2\r\n$3\r\nGET\r\n$1\r\na\r\n");
        let mut from = &b"+OK\r\n:-7\r\n$2\r\n\r\n\r\n$-1\r\n-ERR no\r\n"[..];
        for wanted in [
            Reply::Status("OK".to_owned()),
            Reply::Integer(-7),
            Reply::Bulk(Some(b"\r\n".to_vec())),
            Reply::Bulk(None),
            Reply::Error("ERR no".to_owned()),
        ] {
            assert_eq!(read_reply(&mut from).unwrap(), wanted);
        }
        for bad in [
            "",
            "+OK",
            ":x\r\n",
            "$99999999\r\n",
            "$1\r\nabc",
            "?\r\n",
            "\r\n",
        ] {
            assert!(read_reply(&mut bad.as_bytes()).is_err(), "{bad:?}");
        }
    }
}
