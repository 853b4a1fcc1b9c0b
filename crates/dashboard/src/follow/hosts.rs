//! Other hosts, as `hikkoshi status --host --watch --json` prints them. This process, which is
//! sandboxed, connects to none: another one asks them.

use std::io::{self, BufRead, BufReader, Read};
use std::thread;

use error_reporter::Report;
use hikkoshi_status::{HostStatus, MAX_HOST_ENTRIES};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Migrations;

/// The longest line, in bytes: a host with all of its guests, or a migration.
const MAX_LINE: u64 = 8 << 20;

/// Another host.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct OtherHost {
    /// How it was named.
    pub(crate) asked: String,
    /// Its last answer, with its migrations. `None`: there is none.
    pub(crate) status: Option<HostStatus>,
    /// Why there is none.
    pub(crate) error: Option<String>,
}

/// The line of a host.
#[derive(Debug, Deserialize)]
struct HostLine {
    asked: String,
    status: Option<HostStatus>,
    error: Option<String>,
    /// How many lines of migrations follow.
    migrations: usize,
}

/// Why no more is read of the hosts.
#[derive(Debug, thiserror::Error)]
enum ReadError {
    #[error("reading from the process that asks it")]
    Io(#[from] io::Error),
    #[error("the process that asks it has sent what cannot be read")]
    Line(#[from] serde_json::Error),
    #[error("the process that asks it has sent a host with {0} migrations")]
    TooMany(usize),
    #[error("the process that asks it has ended")]
    Ended,
}

/// Reads hosts in a thread of its own, until there are no more.
///
/// # Errors
/// If there cannot be another thread.
pub(crate) fn follow(input: impl Read + Send + 'static, migrations: Migrations) -> io::Result<()> {
    let thread = thread::Builder::new().name("dash-hosts".into());
    thread.spawn(move || {
        let mut input = BufReader::new(input);
        loop {
            match next_host(&mut input) {
                Ok(host) => migrations.set_host(host),
                Err(error) => return migrations.lose_hosts(&Report::new(&error).to_string()),
            }
        }
    })?;
    Ok(())
}

fn next_host(input: &mut impl BufRead) -> Result<OtherHost, ReadError> {
    let HostLine {
        asked,
        mut status,
        error,
        migrations,
    } = next_line(input)?;
    if migrations > MAX_HOST_ENTRIES {
        return Err(ReadError::TooMany(migrations));
    }
    for _ in 0..migrations {
        let migration: Value = next_line(input)?;
        if let Some(status) = &mut status {
            status.migrations.push(migration);
        }
    }
    Ok(OtherHost {
        asked,
        status,
        error,
    })
}

fn next_line<T: for<'a> Deserialize<'a>>(input: &mut impl BufRead) -> Result<T, ReadError> {
    let mut line = Vec::new();
    match input.take(MAX_LINE).read_until(b'\n', &mut line)? {
        0 => Err(ReadError::Ended),
        _ => Ok(serde_json::from_slice(&line)?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_host_has_the_lines_after_it() {
        let line = |asked: &str, migrations| {
            json!({ "version": 1, "asked": asked, "status": null, "error": "no answer",
                "migrations": migrations })
        };
        let text = format!(
            "{}\n{}\n{}\n",
            line("a", 1),
            json!({ "name": "m" }),
            line("b", 0)
        );
        let mut input = text.as_bytes();
        for asked in ["a", "b"] {
            let host = next_host(&mut input).unwrap();
            assert_eq!(
                (&*host.asked, host.error.as_deref()),
                (asked, Some("no answer"))
            );
        }
        assert!(matches!(next_host(&mut input), Err(ReadError::Ended)));
        for bad in [line("a", 100_000), line("a", 1), json!({ "name": "m" })] {
            let text = format!("{bad}\n");
            assert!(next_host(&mut text.as_bytes()).is_err(), "{bad}");
        }
        let endless = io::repeat(b' ');
        let read = next_host(&mut BufReader::new(endless));
        assert!(matches!(read, Err(ReadError::Line(_))), "{read:?}");
    }
}
